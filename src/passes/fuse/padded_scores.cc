// Pads scores of a vocabulary to a number of columns that products run fast with.
#include "passes/fuse/padded_scores.h"

#include <algorithm>
#include <map>
#include <set>

#include "passes/rewriter.h"

namespace trireme::passes {
namespace {

using ir::Node;
using ir::ValueId;
using tensor::Tensor;

constexpr int64_t kColumns = 64;        // 128 bytes of 16-bit scores
constexpr int64_t kLeastClasses = 256;  // with fewer, the product takes no time

bool is_loss(std::string_view op) { return op == "cross_entropy" || op == "cross_entropy_part"; }

/// One product of scores and all nodes that read the scores or their gradient.
class Scores {
 public:
  Scores(Rewriter& rw, const std::vector<std::vector<ir::NodeId>>& uses, const std::set<ValueId>& outputs)
      : rw_(rw), uses_(uses), outputs_(outputs) {}

  bool pad(const Node& linear) {
    if (!is_plain(linear)) return false;
    classes_ = last_extent(linear.out[0]);
    if (classes_ < kLeastClasses || classes_ % kColumns == 0) return false;
    more_ = (classes_ + kColumns - 1) / kColumns * kColumns - classes_;
    if (!follow(linear.out[0], false) || !has_loss_) return false;
    widen(linear);
    return true;
  }

 private:
  ir::Graph& graph() { return rw_.graph(); }
  int64_t last_extent(ValueId id) const { return rw_.graph().type(id).shape.to_dims().back(); }

  /// A product with a matrix, perhaps with a bias, but without activation or residual.
  bool is_plain(const Node& linear) const {
    const bool has_residual = linear.in.size() > 3 && linear.in[3] != ir::kNoValue;
    return !has_residual && linear.out.size() == 1 &&
           linear.attrs.get_string("activation", "none") == "none" &&
           linear.attrs.get_int("float8", 0) == 0 && rw_.graph().type(linear.out[0]).shape.is_static();
  }

  /// True for casts, and for views that keep the last axis.
  bool carries(const Node& node) const {
    if (node.op_name() == "cast") return true;
    return node.op_name() == "reshape" && last_extent(node.out[0]) == classes_;
  }

  /// Collects the readers of scores, or of their gradient, in the order of the graph; false if one of them
  /// cannot take more columns.
  bool follow(ValueId id, bool is_gradient) {
    if (outputs_.count(id) > 0) return false;
    for (const ir::NodeId reader : uses_[ir::index(id)]) {
      const Node& node = rw_.graph().node(reader);
      if (!seen_.insert(reader).second) continue;
      const std::string_view op = node.op_name();
      if (carries(node)) {
        if (!follow(node.out[0], is_gradient)) return false;
      } else if (is_gradient) {
        const size_t at = op == "linear_grad_w" ? 1 : 0;
        if ((op != "linear_grad_x" && op != "linear_grad_w") || node.in[at] != id) return false;
      } else if (is_loss(op) && node.in[0] == id) {
        has_loss_ = true;
      } else if (op != "cross_entropy_grad" || node.in[0] != id || !follow(node.out[0], true)) {
        return false;
      }
      if (node.attrs.get_int("padded", 0) != 0) return false;
    }
    return true;
  }

  ValueId ints(std::vector<int64_t> values) {
    const auto count = static_cast<int64_t>(values.size());
    return rw_.constant(Tensor::from<int64_t>({count}, std::span<const int64_t>(values)));
  }

  /// The matrix with rows or columns of zeros after its last class, made once for all products that read it.
  ValueId padded(ValueId weight, bool by_rows, const std::string& from) {
    ValueId& made = padded_.try_emplace(weight, ir::kNoValue).first->second;
    if (made != ir::kNoValue) return made;
    const size_t rank = graph().type(weight).shape.rank();
    std::vector<int64_t> ends(2 * rank, 0);
    ends[2 * rank - (by_rows && rank > 1 ? 2 : 1)] = more_;
    return made = rw_.add("pad", {weight, ints(std::move(ends))}, {}, from);
  }

  static bool by_rows(const Node& product) { return product.attrs.get_int("transposed", 0) != 0; }

  void widen(const Node& linear) {
    std::vector<ValueId> in = linear.in;
    for (size_t i : {size_t{1}, size_t{2}}) {
      if (i < in.size() && in[i] != ir::kNoValue) in[i] = padded(in[i], by_rows(linear), linear.from);
    }
    now_[linear.out[0]] = rw_.add("linear", in, linear.attrs, linear.from);
    // In the order of the sorted graph: operands are replaced before their readers.
    for (const ir::NodeId reader : seen_) widen_reader(Node(graph().node(reader)));
  }

  void widen_reader(Node node) {
    const std::string_view op = node.op_name();
    for (ValueId& id : node.in) {
      if (const auto at = now_.find(id); at != now_.end()) id = at->second;
    }
    if (op == "reshape") {
      tensor::Dims dims = graph().type(node.out[0]).shape.to_dims();
      dims.back() += more_;
      node.in[1] = ints({dims.begin(), dims.end()});
    }
    if (is_loss(op) || op == "cross_entropy_grad") node.attrs.set("padded", more_);
    if (op == "linear_grad_x") node.in[1] = padded(node.in[1], by_rows(node), node.from);
    const std::vector<ValueId> results = rw_.add_all(op, node, node.out.size());
    leave_out(graph(), node, results);
    if (carries_columns(node)) {
      now_[node.out[0]] = results[0];
      return;
    }
    for (size_t i = 0; i < results.size(); ++i) {
      if (node.out[i] == ir::kNoValue) continue;
      rw_.replace(node.out[i], op == "linear_grad_w" ? own_part(node, results[i], i == 0) : results[i]);
    }
  }

  /// True if the first result has the columns of scores.
  static bool carries_columns(const Node& node) {
    const std::string_view op = node.op_name();
    return op == "cast" || op == "reshape" || op == "cross_entropy_grad";
  }

  /// The gradient of the weight or of the bias without the padding.
  ValueId own_part(const Node& product, ValueId gradient, bool is_matrix) {
    const int64_t axis = is_matrix && !by_rows(product) ? 1 : 0;
    return rw_.add("slice", {gradient, ints({0}), ints({classes_}), ints({axis})}, {}, product.from);
  }

  Rewriter& rw_;
  const std::vector<std::vector<ir::NodeId>>& uses_;
  const std::set<ValueId>& outputs_;
  int64_t classes_ = 0, more_ = 0;
  bool has_loss_ = false;
  std::set<ir::NodeId> seen_;
  std::map<ValueId, ValueId> now_, padded_;
};

}  // namespace

size_t pad_scores(ir::Graph& graph) {
  graph.sort();
  const std::vector<std::vector<ir::NodeId>> uses = graph.uses();
  const std::set<ValueId> outputs(graph.outputs().begin(), graph.outputs().end());
  Rewriter rw(graph);
  return rw.for_each("linear",
                     [&](ir::NodeId, const Node& linear) { return Scores(rw, uses, outputs).pad(linear); });
}

}  // namespace trireme::passes
