// Type rules shared by all operators: operand counts, index notation, broadcasting, default cost.
#include "ir/schema.h"

#include "ir/notation.h"

#include <algorithm>
#include <map>

namespace trireme::ir {
namespace {

using tensor::Dim;
using tensor::Shape;
using tensor::TensorType;

std::vector<std::string> split(std::string_view text, std::string_view separator) {
  std::vector<std::string> parts;
  size_t start = 0;
  while (true) {
    const size_t end = text.find(separator, start);
    parts.emplace_back(text.substr(start, end == std::string_view::npos ? end : end - start));
    if (end == std::string_view::npos) return parts;
    start = end + separator.size();
  }
}

/// What the letters and the "..." of one application of a notation stand for.
struct Binding {
  std::map<char, Dim> letters;
  Shape ellipsis;
};

bool has_ellipsis(const std::string& spec) { return spec.rfind("...", 0) == 0; }

void bind_letter(Binding& binding, char letter, const Dim& dim, std::string_view node_name) {
  auto [at, is_new] = binding.letters.emplace(letter, dim);
  if (is_new || at->second == dim) return;
  if (at->second.is_static() && dim.is_static()) {
    base::fail_invalid("dimension '", std::string(1, letter), "' is ", at->second.value(),
                       " in one operand and ", dim.value(), " in another (", node_name, ")");
  }
  if (dim.is_static()) at->second = dim;
}

void bind_operand(Binding& binding, const std::string& spec, const Shape& shape, std::string_view node_name) {
  const bool open = has_ellipsis(spec);
  const std::string letters = open ? spec.substr(3) : spec;
  if (!shape.has_rank()) return;
  base::require(open ? shape.rank() >= letters.size() : shape.rank() == letters.size(), "operand of shape ",
                shape.to_string(), " does not fit '", spec, "' (", node_name, ")");
  const size_t lead = shape.rank() - letters.size();
  if (open) {
    Shape front(std::vector<Dim>(shape.dims().begin(), shape.dims().begin() + static_cast<int64_t>(lead)));
    binding.ellipsis = broadcast(binding.ellipsis, front);
  }
  for (size_t i = 0; i < letters.size(); ++i) bind_letter(binding, letters[i], shape[lead + i], node_name);
}

Shape result_shape(const Binding& binding, const std::string& spec) {
  std::vector<Dim> dims;
  if (has_ellipsis(spec)) dims = binding.ellipsis.dims();
  for (char letter : has_ellipsis(spec) ? spec.substr(3) : spec) {
    auto at = binding.letters.find(letter);
    dims.push_back(at == binding.letters.end() ? Dim::unknown() : at->second);
  }
  return Shape(std::move(dims));
}

Binding bind_all(const std::string& notation, const NodeView& node) {
  const std::vector<std::string> operands = split(split(notation, "->")[0], ",");
  Binding binding;
  for (size_t i = 0; i < operands.size() && i < node.in.size(); ++i) {
    if (node.present(i)) bind_operand(binding, operands[i], node.in[i].shape, node.name);
  }
  return binding;
}

/// Product of all extents the notation mentions: multiply-adds of the contraction. 0 when not static.
double points(const std::string& notation, const NodeView& node) {
  const Binding binding = bind_all(notation, node);
  double total = 1;
  for (const Dim& d : binding.ellipsis.dims()) total *= d.is_static() ? static_cast<double>(d.value()) : 0;
  for (const auto& [letter, dim] : binding.letters)
    total *= dim.is_static() ? static_cast<double>(dim.value()) : 0;
  return total;
}

}  // namespace

tensor::Shape broadcast(const Shape& a, const Shape& b) {
  if (!a.has_rank() || !b.has_rank()) return Shape::unknown_rank();
  const size_t rank = std::max(a.rank(), b.rank());
  std::vector<Dim> out;
  for (size_t i = 0; i < rank; ++i) {
    const Dim x = i + a.rank() < rank ? Dim(1) : a[i + a.rank() - rank];
    const Dim y = i + b.rank() < rank ? Dim(1) : b[i + b.rank() - rank];
    const bool x_is_one = x.is_static() && x.value() == 1, y_is_one = y.is_static() && y.value() == 1;
    if (x_is_one) {
      out.push_back(y);
    } else if (y_is_one || x == y) {
      out.push_back(x);
    } else if (x.is_static() && y.is_static()) {
      base::fail_invalid("shapes ", a.to_string(), " and ", b.to_string(), " do not broadcast");
    } else {
      // A symbol against a number: the number wins unless the symbol turns out to be 1; two symbols stay
      // unknown.
      out.push_back(x.is_static() ? x : y.is_static() ? y : Dim::unknown());
    }
  }
  return Shape(std::move(out));
}

size_t normal_axis(int64_t axis, size_t rank) {
  const int64_t n = static_cast<int64_t>(rank);
  base::require(axis >= -n && axis < n, "axis ", axis, " is outside a rank of ", rank);
  return static_cast<size_t>(axis < 0 ? axis + n : axis);
}

bool is_elementwise(const OpSchema& op) {
  const std::vector<std::string> sides = split(op.dims, "->");
  if (sides.size() != 2 || !spreads_over_results(op, 0)) return false;
  const std::vector<std::string> out = split(sides[1], ",");
  return std::all_of(out.begin(), out.end(), [](const std::string& spec) { return spec == "..."; });
}

bool spreads_over_results(const OpSchema& op, size_t operand) {
  const std::vector<std::string> in = split(split(op.dims, "->")[0], ",");
  return has_ellipsis(in[std::min(operand, in.size() - 1)]);
}

bool moves_operand(const OpSchema& op, size_t operand) {
  constexpr size_t kLast = 31;
  return (op.moves >> std::min(operand, kLast) & 1u) != 0;
}

PrecisionRule precision_of(const OpSchema& op) {
  if (op.precision) return *op.precision;
  if (op.moves == 0) return {};
  return {.kind = PrecisionRule::Kind::follows, .why = "moves elements"};
}

std::vector<TensorType> infer_from_notation(const std::string& notation, const NodeView& node) {
  const std::vector<std::string> sides = split(notation, "->");
  base::check(sides.size() == 2, "index notation '", notation, "' has no '->'");
  const Binding binding = bind_all(notation, node);
  std::vector<TensorType> out;
  for (const std::string& spec : split(sides[1], ","))
    out.push_back({node.in[0].dtype, result_shape(binding, spec)});
  out.resize(std::min(out.size(), std::max<size_t>(node.out_count, 1)));
  return out;
}

std::vector<TensorType> infer_types(const OpSchema& op, const NodeView& node) {
  const size_t given = node.in.size();
  base::require(given >= op.min_in && given <= op.max_in, "op '", op.name, "' takes ", op.min_in,
                op.max_in == op.min_in ? "" : base::concat(" to ", op.max_in), " operands, got ", given);
  base::require(node.out_count >= op.min_out, "op '", op.name, "' has at least ", op.min_out,
                " results, asked for ", node.out_count);
  base::require(node.out_count <= op.max_out, "op '", op.name, "' has at most ", op.max_out,
                " results, asked for ", node.out_count);
  for (size_t i = 0; i < op.min_in; ++i)
    base::require(node.present(i), "op '", op.name, "' needs operand ", i);
  std::vector<TensorType> types = op.infer ? op.infer(node) : infer_from_notation(op.dims, node);
  base::require(types.size() >= node.out_count, "op '", op.name, "' has ", types.size(),
                " results with these attributes, asked for ", node.out_count);
  types.resize(node.out_count);
  for (const TensorType& t : types) {
    // A dimension without number and name comes from an operand's negative value.
    for (const tensor::Dim& d : t.shape.dims())
      base::require(d.is_static() || !d.name().empty(), "op '", op.name, "' would make a negative extent");
    if (t.shape.is_static()) tensor::element_count(t.shape.to_dims());  // refuses overflow
  }
  return types;
}

Cost cost_of(const OpSchema& op, const NodeView& node) {
  if (op.cost) return op.cost(node);
  Cost cost;
  if (op.is_view) return cost;
  for (size_t i = 0; i < node.in.size(); ++i) {
    if (node.present(i)) cost.bytes += static_cast<double>(tensor::bytes_of(node.in[i]));
  }
  for (const TensorType& t : node.out) {
    cost.bytes += static_cast<double>(tensor::bytes_of(t));
    cost.flop += static_cast<double>(t.shape.elements().value_or(0));
  }
  if (!op.sums.empty()) cost.flop = 2 * points(op.dims, node);
  return cost;
}

}  // namespace trireme::ir
