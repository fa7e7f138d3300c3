// Replaces marked products by quantizers and products of 8-bit floats.
#include "passes/precision/float8.h"

#include <array>
#include <map>

#include "ops/quant/float8s.h"
#include "ops/table.h"

namespace trireme::passes {
namespace {

using ir::Node;
using ir::ValueId;

constexpr const char* kMark = "float8";

/// A value that is needed in quantized form, and how.
struct Wanted {
  ValueId value;
  bool e5m2 = false;
  auto operator<=>(const Wanted&) const = default;
};

/// The codes and scales along one side.
struct Codes {
  ValueId codes = ir::kNoValue, scale = ir::kNoValue;
};

/// The forms needed of a value, and the results: rows, then columns; and the sums of columns.
struct Asked {
  std::array<bool, 2> sides{};
  bool sums = false;
};
struct Float8Forms {
  std::array<Codes, 2> sides;
  ValueId sums = ir::kNoValue;
};

/// A product a b' of one of three kinds: its operands, and whether rows of a and b are columns of the values.
struct Float8Product {
  Wanted a, b;
  bool a_columns = false, b_columns = false;
};

class Float8Lowering {
 public:
  Float8Lowering(ir::Graph& graph, tensor::DeviceKind device) : graph_(graph), device_(device) {}

  size_t run() {
    const size_t count = graph_.nodes().size();
    std::vector<ir::NodeId> found;
    for (size_t n = 0; n < count; ++n) {
      const auto id = ir::NodeId(static_cast<uint32_t>(n));
      const Node& node = graph_.node(id);
      if (node.op == nullptr || node.attrs.get_int(kMark, 0) == 0) continue;
      if (!fits(node)) {
        graph_.node(id).attrs.erase(kMark);
        continue;
      }
      const Float8Product p = product_of(node);
      ask(p.a, p.a_columns);
      ask(p.b, p.b_columns);
      if (has_sums(node)) asked_[{node.in[1], true}].sums = true;
      found.push_back(id);
    }
    for (const ir::NodeId id : found) replace(id);
    for (const auto& [old, sums] : sums_) graph_.replace_uses(old, sums);
    graph_.sort();
    return found.size();
  }

 private:
  static bool is_transposed(const Node& node) { return node.attrs.get_int("transposed", 0) != 0; }

  /// True for a plain product whose matrix (the weight, or its gradient) has extents that are supported.
  bool fits(const Node& node) const {
    const bool has_slope = node.op_name() == "linear_grad_x" && node.in.size() > 2;
    const bool has_argument = node.op_name() == "linear" && node.out.size() > 1;
    if (has_slope || has_argument || node.out[0] == ir::kNoValue) return false;
    const ValueId matrix = node.op_name() == "linear_grad_w" ? node.out[0] : node.in[1];
    const tensor::Dims dims = graph_.type(matrix).shape.to_dims();
    return !refuse_float8(dims[0], dims[1]).has_value();
  }

  static Float8Product product_of(const Node& node) {
    const bool t = is_transposed(node);
    if (node.op_name() == "linear") return {{node.in[0]}, {node.in[1]}, false, !t};
    if (node.op_name() == "linear_grad_x") return {{node.in[0], true}, {node.in[1]}, false, t};
    const Wanted x{node.in[0]}, dy{node.in[1], true};
    return {t ? dy : x, t ? x : dy, true, true};
  }

  /// True for a weight gradient that also yields the bias gradient, the sum of dy over all rows.
  static bool has_sums(const Node& node) {
    return node.op_name() == "linear_grad_w" && node.out.size() > 1 && node.out[1] != ir::kNoValue;
  }

  void ask(const Wanted& what, bool columns) { asked_[what].sides[columns] = true; }

  /// The codes of an operand, made once for all its readers.
  const Float8Forms& quantized(const Wanted& what, const std::string& from) {
    auto [at, is_new] = made_.try_emplace(what);
    if (is_new) at->second = quantize(what, from);
    return at->second;
  }
  const Codes& codes(const Wanted& what, bool columns, const std::string& from) {
    return quantized(what, from).sides[columns];
  }

  Float8Forms quantize(const Wanted& what, const std::string& from) {
    const auto& [asked, sums] = asked_.at(what);
    const bool both = asked[0] && asked[1];
    const char* op = both ? "float8_both" : asked[1] ? "float8_columns" : "float8_rows";
    const ir::Attrs attrs = what.e5m2 ? ir::Attrs{{"e5m2", int64_t{1}}} : ir::Attrs{};
    const std::vector<ValueId> out =
        graph_.add(ops::table().need(op), {what.value}, attrs, (both ? 4 : 2) + sums, from);
    Float8Forms result;
    if (sums) result.sums = out.back();
    size_t next = 0;
    for (size_t side = 0; side < 2; ++side) {
      if (!asked[side]) continue;
      result.sides[side] = {out[next], out[next + 1]};
      next += 2;
    }
    return result;
  }

  /// Replaces the node in place, so that weight gradients stay where they are computed: a new node would be
  /// sorted right before its first reader, the update, and keep its operands alive until then.
  void replace(ir::NodeId id) {
    const Node old = graph_.node(id);  // a copy, as the graph grows
    const Float8Product p = product_of(old);
    const Codes a = codes(p.a, p.a_columns, old.from), b = codes(p.b, p.b_columns, old.from);
    const std::string type(name_of(graph_.type(old.out[0]).dtype));
    const bool is_expanded = device_ == tensor::DeviceKind::cpu;
    Node next{.op = &ops::table().need(is_expanded ? "linear" : "float8_product"),
              .attrs = {},
              .in = {a.codes, a.scale, b.codes, b.scale},
              .out = {old.out[0]},
              .from = old.from};
    if (is_expanded) next.in = {values(a, type, old.from), values(b, type, old.from)};
    if (old.op_name() == "linear") {
      next.in.insert(next.in.end(), old.in.begin() + 2, old.in.end());
      next.attrs = old.attrs;
      next.attrs.erase(kMark);
      next.attrs.erase("transposed");
    }
    is_expanded ? next.attrs.set("transposed", int64_t{1}) : next.attrs.set("type", type);
    if (has_sums(old)) sums_.emplace_back(old.out[1], bias_gradient(old));
    graph_.node(id) = std::move(next);
  }

  ValueId bias_gradient(const Node& node) {
    const ValueId sums = quantized({node.in[1], true}, node.from).sums;
    const tensor::DType type = graph_.type(node.out[1]).dtype;
    if (type == tensor::DType::f32) return sums;
    constexpr int64_t kF16 = 10, kBf16 = 16;  // numbers of ONNX data types
    return graph_.add1(ops::table().need("cast"), {sums}, {{"to", type == tensor::DType::f16 ? kF16 : kBf16}},
                       node.from);
  }

  ValueId values(const Codes& from, const std::string& type, const std::string& source) {
    return graph_.add1(ops::table().need("float8_values"), {from.codes, from.scale}, {{"type", type}},
                       source);
  }

  ir::Graph& graph_;
  tensor::DeviceKind device_;
  std::map<Wanted, Asked> asked_;
  std::map<Wanted, Float8Forms> made_;
  std::vector<std::pair<ValueId, ValueId>> sums_;  // bias gradients: old, new
};

}  // namespace

ir::Refusal refuse_float8(int64_t n, int64_t k) {
  if (n % ops::kFloat8Align == 0 && k % ops::kFloat8Align == 0 && n * k > 0) return std::nullopt;
  return base::concat("extents are no multiples of ", ops::kFloat8Align);
}

size_t lower_float8(ir::Graph& graph, tensor::DeviceKind device) {
  return Float8Lowering(graph, device).run();
}

}  // namespace trireme::passes
