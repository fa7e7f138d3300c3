// Fuses matmul, bias, activation and residual into one dense op.
#include "passes/fuse/dense.h"

#include <algorithm>

#include "ops/dense/activation.h"
#include "passes/rewriter.h"

namespace trireme::passes {
namespace {

using ir::Node;
using ir::ValueId;
using tensor::Dims;

bool is_f32(const Rewriter& rw, ValueId id) { return rw.graph().type(id).dtype == tensor::DType::f32; }

bool is_matrix(const Rewriter& rw, ValueId id) {
  const auto dims = rw.weight_dims(id);
  return dims && dims->size() == 2 && is_f32(rw, id) && tensor::element_count(*dims) > 0;
}

/// A weight matrix as a product reads it: as stored, or transposed.
struct WeightMatrix {
  ValueId id;
  bool transposed = false;
};

/// Weights that change are not transposed in advance; products read them as they are stored.
std::optional<WeightMatrix> weight_matrix(const Rewriter& rw, ValueId id) {
  if (is_matrix(rw, id)) return WeightMatrix{id};
  const auto turned = rw.producer(id, "transpose");
  if (!turned || !is_matrix(rw, turned->in[0])) return std::nullopt;
  if (turned->attrs.get_ints("perm") != std::vector<int64_t>{1, 0} && turned->attrs.has("perm"))
    return std::nullopt;
  return WeightMatrix{turned->in[0], true};
}

ir::Attrs layout_of(bool transposed) {
  return transposed ? ir::Attrs{{"transposed", int64_t{1}}} : ir::Attrs{};
}

bool linear_from_matmul(Rewriter& rw, const Node& node) {
  const auto x = rw.dims(node.in[0]);
  if (!x || x->size() < 2 || !is_f32(rw, node.in[0])) return false;
  const auto w = weight_matrix(rw, node.in[1]);
  if (!w) return false;
  rw.replace(node.out[0], rw.add("linear", {node.in[0], w->id}, layout_of(w->transposed), node.from));
  return true;
}

/// Whether a weight of these extents, broadcast to a product of n columns, has one value per column. A weight
/// [n, 1] has one per row.
bool has_value_per_column(const Dims& weight, int64_t n) {
  return tensor::element_count(weight) == n && (weight.empty() || weight.back() == n);
}

bool linear_from_gemm(Rewriter& rw, const Node& node) {
  const bool plain = node.attrs.get_float("alpha", 1) == 1 && node.attrs.get_float("beta", 1) == 1 &&
                     node.attrs.get_int("transA", 0) == 0;
  if (!plain || !is_f32(rw, node.in[0]) || !is_matrix(rw, node.in[1])) return false;
  std::vector<ValueId> in{node.in[0], node.in[1]};
  const bool transposed = node.attrs.get_int("transB", 0) != 0;
  if (node.in.size() > 2 && node.in[2] != ir::kNoValue) {
    const int64_t n = (*rw.weight_dims(node.in[1]))[transposed ? 0 : 1];
    const auto bias = rw.weight_dims(node.in[2]);
    if (!bias || !has_value_per_column(*bias, n)) return false;
    in.push_back(rw.reshaped_weight(node.in[2], {n}, node.from));
  }
  rw.replace(node.out[0], rw.add("linear", std::move(in), {{"transposed", int64_t{transposed}}}, node.from));
  return true;
}

/// A linear or conv_nhwc node with one reader, perhaps through a view: converters multiply matrices, and
/// restore the axes before they add the bias or the residual.
struct Dense {
  Node node;
  Dims product, seen;  // extents of its result, and as the reader sees it
};

bool is_view(const Rewriter& rw, const Node& node) {
  return node.op->schema.is_view && rw.graph().type(node.in[0]).dtype == rw.graph().type(node.out[0]).dtype;
}

std::optional<Dense> fusable(const Rewriter& rw, ValueId id) {
  const auto seen = rw.dims(id);
  if (!rw.single_use(id) || !seen) return std::nullopt;
  const Node* view = rw.graph().producer(id);
  if (view != nullptr && !view->in.empty() && is_view(rw, *view) && rw.single_use(view->in[0]))
    id = view->in[0];
  auto node = rw.producer(id, "linear");
  if (!node) node = rw.producer(id, "conv_nhwc");
  const auto product = rw.dims(id);
  if (!node || node->out.size() != 1 || !product) return std::nullopt;
  return Dense{*node, *product, *seen};
}

void set_operand(Node& node, size_t i, ValueId id) {
  if (node.in.size() <= i) node.in.resize(i + 1, ir::kNoValue);
  node.in[i] = id;
}

void rebuild(Rewriter& rw, const Dense& fused, ValueId old) {
  const Node& node = fused.node;
  const ValueId y = rw.add(node.op_name(), node.in, node.attrs, node.from);
  rw.replace(old, rw.reshaped(y, fused.seen, node.from));
}

/// Whether a weight of extents `bias` varies only along the columns of the product: it covers the last axes
/// that the reader sees, and these are the columns.
bool is_along_columns(const Dense& dense, const Dims& bias) {
  const int64_t n = dense.product.back();
  if (dense.seen == dense.product) return has_value_per_column(bias, n);
  if (tensor::element_count(bias) != n) return false;
  int64_t columns = 1;
  size_t axis = dense.seen.size();
  for (; axis > 0 && columns < n; --axis) columns *= dense.seen[axis - 1];
  const size_t axes = dense.seen.size() - axis;
  return columns == n && bias.size() >= axes &&
         std::equal(dense.seen.begin() + static_cast<int64_t>(axis), dense.seen.end(),
                    bias.end() - static_cast<int64_t>(axes));
}

/// add(dense, weight along the last axis).
bool fuse_bias(Rewriter& rw, const Node& add) {
  for (size_t side : {size_t{0}, size_t{1}}) {
    auto dense = fusable(rw, add.in[side]);
    const auto bias = rw.weight_dims(add.in[1 - side]);
    if (!dense || !bias || dense->node.has_operand(2) || dense->node.has_operand(3) ||
        has_activation(dense->node))
      continue;
    if (!is_along_columns(*dense, *bias) || rw.dims(add.out[0]) != dense->seen) continue;
    set_operand(dense->node, 2, rw.reshaped_weight(add.in[1 - side], {dense->product.back()}, add.from));
    rebuild(rw, *dense, add.out[0]);
    return true;
  }
  return false;
}

/// add(dense, tensor of the same shape). The dense result has no other reader, so the other operand cannot
/// depend on it.
bool fuse_residual(Rewriter& rw, const Node& add) {
  for (size_t side : {size_t{0}, size_t{1}}) {
    auto dense = fusable(rw, add.in[side]);
    const ValueId other = add.in[1 - side];
    if (!dense || dense->node.has_operand(3) || rw.is_weight(other)) continue;
    if (rw.dims(other) != dense->seen || !is_f32(rw, other)) continue;
    set_operand(dense->node, 3, rw.reshaped(other, dense->product, add.from));
    if (has_activation(dense->node)) dense->node.attrs.set("act_before_residual", int64_t{1});
    rebuild(rw, *dense, add.out[0]);
    return true;
  }
  return false;
}

bool fuse_activation(Rewriter& rw, const Node& node) {
  auto dense = fusable(rw, node.in[0]);
  if (!dense || has_activation(dense->node)) return false;
  const std::optional<ir::Attrs> attrs = ops::ending_of(node.op_name(), rw.graph().view(node));
  if (!attrs) return false;
  for (const auto& [name, value] : attrs->items()) dense->node.attrs.set(name, value);
  rebuild(rw, *dense, node.out[0]);
  return true;
}

}  // namespace

size_t make_linear(ir::Graph& graph) {
  Rewriter rw(graph);
  return rw.for_each([&](ir::NodeId, const Node& node) {
    if (node.op_name() == "matmul") return linear_from_matmul(rw, node);
    return node.op_name() == "gemm" && linear_from_gemm(rw, node);
  });
}

size_t fuse_biases(ir::Graph& graph) {
  Rewriter rw(graph);
  return rw.for_each("add", [&](ir::NodeId, const Node& node) { return fuse_bias(rw, node); });
}

size_t fuse_epilogues(ir::Graph& graph) {
  size_t total = 0;
  for (size_t changes = 1; changes > 0;) {
    Rewriter rw(graph);
    changes = rw.for_each([&](ir::NodeId, const Node& seen) {
      const Node* now =
          seen.out.empty() || seen.out[0] == ir::kNoValue ? nullptr : rw.graph().producer(seen.out[0]);
      if (now == nullptr || now->in.empty()) return false;
      const Node node = *now;
      if (node.op_name() == "add") return fuse_bias(rw, node) || fuse_residual(rw, node);
      return fuse_activation(rw, node);
    });
    graph.sort();
    total += changes;
  }
  return total;
}

}  // namespace trireme::passes
