// Rewrites an einsum of two operands as a matrix product with batch, rows, columns and sums.
#include "passes/fuse/einsum.h"

#include <algorithm>
#include <map>

#include "ops/linalg/linalg_ops.h"
#include "passes/rewriter.h"

namespace trireme::passes {
namespace {

using ir::Node;
using ir::ValueId;
using tensor::Dims;

/// The letters of the operands and of the result, one for each axis, and the extent of each letter.
struct Equation {
  std::string a, b, y;
  std::map<char, int64_t> extents;
};

bool repeats(std::string letters) {
  std::sort(letters.begin(), letters.end());
  return std::adjacent_find(letters.begin(), letters.end()) != letters.end();
}

/// The equation of the node; nullopt if extents are unknown or an operand's diagonal is read.
std::optional<Equation> read_equation(const Rewriter& rw, const Node& node) {
  std::vector<tensor::Shape> shapes;
  for (const ValueId id : node.in) {
    if (!rw.dims(id) || !tensor::is_float(rw.graph().type(id).dtype)) return std::nullopt;
    shapes.push_back(rw.graph().type(id).shape);
  }
  const ops::EinsumPlan plan = ops::parse_einsum(node.attrs.get_string("equation", ""), shapes);
  const auto letters = [](const std::vector<size_t>& ids) {
    std::string text;
    for (const size_t id : ids) text += static_cast<char>('A' + id);  // at most 52 letters and one rank
    return text;
  };
  Equation e{letters(plan.operands[0]), letters(plan.operands[1]), letters(plan.result), {}};
  for (size_t id = 0; id < plan.extents.size(); ++id) {
    if (plan.extents[id].value() == 0) return std::nullopt;
    e.extents[static_cast<char>('A' + id)] = plan.extents[id].value();
  }
  if (plan.extents.size() > 60 || repeats(e.a) || repeats(e.b)) return std::nullopt;
  return e;
}

bool has(const std::string& letters, char c) { return letters.find(c) != std::string::npos; }

/// The letters of `from` that satisfy `wanted`.
template <class F>
std::string chosen(const std::string& from, F&& wanted) {
  std::string out;
  std::copy_if(from.begin(), from.end(), std::back_inserter(out), wanted);
  return out;
}

/// An operand or result with one letter per axis.
struct Lettered {
  ValueId value;
  std::string letters;
};

class Opener {
 public:
  Opener(Rewriter& rw, const Node& node, const Equation& e)
      : rw_(rw), node_(node), y_(e.y), a_{node.in[0], e.a}, b_{node.in[1], e.b}, extents_(e.extents) {}

  bool run() {
    a_ = unrepeated(a_, b_);
    b_ = unrepeated(b_, a_);
    a_ = own_sums(a_, b_);
    b_ = own_sums(b_, a_);
    return rw_.replace_same(node_.out[0], result());
  }

 private:
  ValueId result() {
    const std::string sums = chosen(a_.letters, [&](char c) { return has(b_.letters, c) && !has(y_, c); });
    if (sums.empty()) return broadcast_product();
    const std::string batch = chosen(y_, [&](char c) { return has(a_.letters, c) && has(b_.letters, c); });
    // Weights become the right operand of the product.
    if (batch.empty() && rw_.is_weight(a_.value) && !rw_.is_weight(b_.value)) std::swap(a_, b_);
    const std::string rows = chosen(a_.letters, [&](char c) { return !has(b_.letters, c); });
    const std::string columns = chosen(b_.letters, [&](char c) { return !has(a_.letters, c); });
    const ValueId left = batch.empty() ? rows_apart(rows, sums) : joined(a_, batch, rows, sums);
    const ValueId right = batch.empty() ? matrix(sums, columns) : joined(b_, batch, sums, columns);
    const ValueId product = rw_.add("matmul", {left, right}, {}, node_.from);
    const std::string letters = batch + rows + columns;
    return ordered({reshaped(product, extents(letters)), letters}, y_);
  }

  Dims extents(const std::string& letters) const {
    Dims dims;
    for (const char c : letters) dims.push_back(extents_.at(c));
    return dims;
  }

  int64_t size(const std::string& letters) const { return tensor::element_count(extents(letters)); }

  ValueId reshaped(ValueId x, const Dims& to) {
    if (rw_.dims(x) == to) return x;
    if (rw_.is_weight(x)) return rw_.reshaped_weight(x, to, node_.from);
    const ValueId shape = rw_.constant(
        tensor::Tensor::from<int64_t>({static_cast<int64_t>(to.size())}, std::span<const int64_t>(to)));
    return rw_.add("reshape", {x, shape}, {{"allowzero", int64_t{1}}}, node_.from);
  }

  ValueId ordered(const Lettered& x, const std::string& to) {
    if (x.letters == to) return x.value;
    std::vector<int64_t> perm;
    for (const char c : to) perm.push_back(static_cast<int64_t>(x.letters.find(c)));
    return rw_.add("transpose", {x.value}, {{"perm", perm}}, node_.from);
  }

  /// `x` without its axes of extent 1 along which the other operand repeats it.
  Lettered unrepeated(const Lettered& x, const Lettered& other) {
    const Dims dims = *rw_.dims(x.value);
    Lettered out = x;
    out.letters.clear();
    for (size_t i = 0; i < dims.size(); ++i) {
      const char c = x.letters[i];
      if (dims[i] != extents_.at(c) && has(other.letters, c)) continue;
      out.letters += c;
    }
    out.value = out.letters == x.letters ? x.value : reshaped(x.value, extents(out.letters));
    return out;
  }

  /// `x` summed over letters that neither the result nor the other operand has.
  Lettered own_sums(const Lettered& x, const Lettered& other) {
    Lettered out{x.value, {}};
    std::vector<int64_t> axes;
    for (size_t i = 0; i < x.letters.size(); ++i) {
      const char c = x.letters[i];
      if (has(y_, c) || has(other.letters, c))
        out.letters += c;
      else
        axes.push_back(static_cast<int64_t>(i));
    }
    if (axes.empty()) return x;
    const ValueId over = rw_.constant(
        tensor::Tensor::from<int64_t>({static_cast<int64_t>(axes.size())}, std::span<const int64_t>(axes)));
    out.value = rw_.add("reduce_sum", {x.value, over}, {{"keepdims", int64_t{0}}}, node_.from);
    return out;
  }

  /// No letter is summed over in both operands: an elementwise product.
  ValueId broadcast_product() {
    const auto spread = [&](const Lettered& x) {
      Dims to;
      for (const char c : y_) to.push_back(has(x.letters, c) ? extents_.at(c) : 1);
      const std::string order = chosen(y_, [&](char c) { return has(x.letters, c); });
      return reshaped(ordered(x, order), to);
    };
    return rw_.add("mul", {spread(a_), spread(b_)}, {}, node_.from);
  }

  /// [rows apart, sums]: rows keep their separate axes, since nodes around the product see these axes.
  ValueId rows_apart(const std::string& rows, const std::string& sums) {
    Dims to = rows.empty() ? Dims{1} : extents(rows);
    to.push_back(size(sums));
    return reshaped(ordered(a_, rows + sums), to);
  }

  /// [sums, columns]. A matrix that is stored as [columns, sums] gets a transpose of two axes, which products
  /// absorb.
  ValueId matrix(const std::string& sums, const std::string& columns) {
    if (b_.letters == columns + sums && !sums.empty() && !columns.empty()) {
      const ValueId stored = reshaped(b_.value, {size(columns), size(sums)});
      return rw_.add("transpose", {stored}, {{"perm", std::vector<int64_t>{1, 0}}}, node_.from);
    }
    return reshaped(ordered(b_, sums + columns), {size(sums), size(columns)});
  }

  /// The letters in the order [batch without its last letter, the last one, first, second].
  ValueId joined(const Lettered& x, const std::string& batch, const std::string& first,
                 const std::string& second) {
    return reshaped(
        ordered(x, batch + first + second),
        {size(batch.substr(0, batch.size() - 1)), extents_.at(batch.back()), size(first), size(second)});
  }

  Rewriter& rw_;
  const Node& node_;
  const std::string y_;
  Lettered a_, b_;
  const std::map<char, int64_t> extents_;
};

}  // namespace

size_t open_einsum(ir::Graph& graph) {
  Rewriter rw(graph);
  return rw.for_each("einsum", [&](ir::NodeId, const Node& node) {
    if (node.in.size() != 2 || rw.uses(node.out[0]) == 0) return false;
    const auto equation = read_equation(rw, node);
    return equation && Opener(rw, node, *equation).run();
  });
}

}  // namespace trireme::passes
