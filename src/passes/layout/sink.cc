// Moves layout transposes down through ops that work in either layout, until they meet and cancel.
#include <algorithm>

#include "ir/notation.h"
#include "ops/conv/window.h"
#include "passes/layout/layout.h"
#include "passes/layout/moves.h"
#include "passes/layout/sink_axes.h"
#include "passes/rewriter.h"

namespace trireme::passes {
namespace {

using ir::Node;
using ir::ValueId;
using Permutation = std::vector<int64_t>;

Permutation inverse(const Permutation& perm) {
  Permutation inv(perm.size());
  for (size_t i = 0; i < perm.size(); ++i) inv[static_cast<size_t>(perm[i])] = static_cast<int64_t>(i);
  return inv;
}

/// The permutation of `id` if a transpose computes it, else empty.
Permutation permutation_of(const Rewriter& rw, ValueId id) {
  const auto t = rw.producer(id, "transpose");
  return t ? t->attrs.get_ints("perm") : Permutation{};
}

/// A constant of shape [1,c,1,1], [c,1,1] or one element in the layout before the transpose; nullopt for
/// other shapes.
std::optional<ValueId> constant_before(Rewriter& rw, ValueId id, const Permutation& perm) {
  const auto weight = rw.weight_dims(id);
  if (!weight) return std::nullopt;
  if (tensor::element_count(*weight) == 1) return rw.reshaped_weight(id, {}, "");
  tensor::Dims dims = *weight;
  if (dims.size() > perm.size()) return std::nullopt;
  dims.insert(dims.begin(), perm.size() - dims.size(), 1);
  const auto wide = std::count_if(dims.begin(), dims.end(), [](int64_t d) { return d != 1; });
  if (wide != 1) return std::nullopt;
  tensor::Dims before(dims.size());
  // With one extent above 1 the order of the bytes is the same under every permutation.
  for (size_t i = 0; i < perm.size(); ++i) before[static_cast<size_t>(perm[i])] = dims[i];
  return rw.reshaped_weight(id, before, "");
}

/// A computed value in the layout before the transpose, if the transpose moves none of its bytes: gates along
/// channels, rows or columns that are not made by a convolution.
std::optional<ValueId> view_before(Rewriter& rw, ValueId id, const Permutation& perm) {
  const auto shape = rw.dims(id);
  if (!shape || shape->size() > perm.size()) return std::nullopt;
  tensor::Dims dims = *shape;
  dims.insert(dims.begin(), perm.size() - dims.size(), 1);
  tensor::Dims before(dims.size());
  int64_t last = -1;
  for (size_t i = 0; i < perm.size(); ++i) {
    before[static_cast<size_t>(perm[i])] = dims[i];
    if (dims[i] == 1) continue;
    if (perm[i] < last) return std::nullopt;
    last = perm[i];
  }
  if (before == *shape) return id;
  const ValueId to = rw.constant(
      tensor::Tensor::from<int64_t>({static_cast<int64_t>(before.size())}, std::span<const int64_t>(before)));
  return rw.add("reshape", {id, to}, {{"allowzero", int64_t{1}}}, "");
}

/// Operands that are read as a whole (bounds, a type, a random state) stay as they are.
bool sink_elementwise(Rewriter& rw, const Node& node) {
  const auto spreads = [&](size_t i) { return ir::spreads_over_results(node.op->schema, i); };
  Permutation perm;
  for (size_t i = 0; i < node.in.size(); ++i) {
    if (node.in[i] != ir::kNoValue && spreads(i) && perm.empty()) perm = permutation_of(rw, node.in[i]);
  }
  if (perm.empty() || node.out.size() != 1 || rw.dims(node.out[0])->size() != perm.size()) return false;
  std::vector<ValueId> in;
  for (size_t i = 0; i < node.in.size(); ++i) {
    const ValueId id = node.in[i];
    if (id == ir::kNoValue || !spreads(i)) {
      in.push_back(id);
    } else if (permutation_of(rw, id) == perm) {
      in.push_back(rw.producer(id, "transpose")->in[0]);
    } else if (const auto constant = constant_before(rw, id, perm)) {
      in.push_back(*constant);
    } else if (const auto view = view_before(rw, id, perm)) {
      in.push_back(*view);
    } else {
      return false;
    }
  }
  const ValueId y = rw.add(node.op_name(), std::move(in), node.attrs, node.from);
  rw.replace(node.out[0], rw.add("transpose", {y}, {{"perm", perm}}, node.from));
  return true;
}

/// Quantization with one scale for the whole tensor does not depend on the order of axes.
bool has_one_scale(const Rewriter& rw, const Node& node) {
  const tensor::Tensor* scale = rw.known(node.in[1]);
  return scale != nullptr && scale->elements() == 1;
}

bool sink_quantization(Rewriter& rw, const Node& node) {
  const Permutation perm = permutation_of(rw, node.in[0]);
  if (perm.empty() || !has_one_scale(rw, node)) return false;
  std::vector<ValueId> in = node.in;
  in[0] = rw.producer(node.in[0], "transpose")->in[0];
  const ValueId y = rw.add(node.op_name(), std::move(in), node.attrs, node.from);
  rw.replace(node.out[0], rw.add("transpose", {y}, {{"perm", perm}}, node.from));
  return true;
}

/// The quantized sum of two tensors under the same transpose.
bool sink_quantized_add(Rewriter& rw, const Node& node) {
  const Permutation perm = permutation_of(rw, node.in[0]);
  if (perm.empty() || permutation_of(rw, node.in[3]) != perm) return false;
  std::vector<ValueId> in = node.in;
  for (size_t i : {size_t{0}, size_t{3}}) in[i] = rw.producer(node.in[i], "transpose")->in[0];
  const ValueId y = rw.add("qadd", std::move(in), node.attrs, node.from);
  rw.replace(node.out[0], rw.add("transpose", {y}, {{"perm", perm}}, node.from));
  return true;
}

/// Statistics per channel do not depend on the position of the channel axis.
bool sink_batch_norm(Rewriter& rw, const Node& node) {
  const Permutation perm = permutation_of(rw, node.in[0]);
  if (perm.empty()) return false;
  Node sunk = node;
  sunk.in[0] = rw.producer(node.in[0], "transpose")->in[0];
  if (node.in.size() > 3 && node.in[3] != ir::kNoValue) {  // the residual that is added before the ReLU
    if (permutation_of(rw, node.in[3]) != perm) return false;
    sunk.in[3] = rw.producer(node.in[3], "transpose")->in[0];
  }
  const size_t axis = ir::normal_axis(node.attrs.get_int("axis", 1), perm.size());
  sunk.attrs.set("axis", perm[axis]);
  const std::vector<ValueId> results = rw.add_all("batch_norm_train", sunk, node.out.size());
  rw.replace(node.out[0], rw.add("transpose", {results[0]}, {{"perm", perm}}, node.from));
  for (size_t i = 1; i < results.size(); ++i) {
    if (node.out[i] != ir::kNoValue) rw.replace(node.out[i], results[i]);
  }
  return true;
}

/// Statistics over groups of channels of channels-last images; in an instance norm each channel is a group.
bool sink_group_norm(Rewriter& rw, const Node& node) {
  const Permutation perm = permutation_of(rw, node.in[0]);
  if (perm.size() < 3 || perm != ops::channels_first(perm.size())) return false;
  const ValueId x = rw.producer(node.in[0], "transpose")->in[0];
  if (rw.graph().type(x).dtype != tensor::DType::f32) return false;
  const ir::Attrs attrs{{"num_groups", node.attrs.get_int("num_groups", rw.dims(x)->back())},
                        {"epsilon", node.attrs.get_float("epsilon", 1e-5)}};
  const ValueId y = rw.add("group_norm_nhwc", {x, node.in[1], node.in[2]}, attrs, node.from);
  rw.replace(node.out[0], rw.add("transpose", {y}, {{"perm", perm}}, node.from));
  return true;
}

bool sink_concat(Rewriter& rw, const Node& node) {
  const Permutation perm = permutation_of(rw, node.in[0]);
  if (perm.empty()) return false;
  std::vector<ValueId> in;
  for (ValueId id : node.in) {
    if (permutation_of(rw, id) != perm) return false;
    in.push_back(rw.producer(id, "transpose")->in[0]);
  }
  ir::Attrs attrs = node.attrs;
  const size_t axis = ir::normal_axis(attrs.get_int("axis", 0), perm.size());
  attrs.set("axis", perm[axis]);
  const ValueId y = rw.add("concat", std::move(in), std::move(attrs), node.from);
  rw.replace(node.out[0], rw.add("transpose", {y}, {{"perm", perm}}, node.from));
  return true;
}

/// The pads of a 4-D tensor, [begins, ends] per axis, are permuted with the axes.
bool sink_pad(Rewriter& rw, const Node& node) {
  const Permutation perm = permutation_of(rw, node.in[0]);
  const auto pads = node.in.size() > 1 ? rw.ints(node.in[1]) : std::nullopt;
  const bool has_axes = node.in.size() > 3 && node.in[3] != ir::kNoValue;
  if (perm.empty() || !pads || has_axes || pads->size() != 2 * perm.size()) return false;
  const size_t rank = perm.size();
  std::vector<int64_t> before(2 * rank);
  for (size_t i = 0; i < rank; ++i) {
    before[static_cast<size_t>(perm[i])] = (*pads)[i];
    before[rank + static_cast<size_t>(perm[i])] = (*pads)[rank + i];
  }
  std::vector<ValueId> in = node.in;
  in[0] = rw.producer(node.in[0], "transpose")->in[0];
  in[1] = rw.constant(
      tensor::Tensor::from<int64_t>({static_cast<int64_t>(2 * rank)}, std::span<const int64_t>(before)));
  const ValueId y = rw.add("pad", std::move(in), node.attrs, node.from);
  rw.replace(node.out[0], rw.add("transpose", {y}, {{"perm", perm}}, node.from));
  return true;
}

/// A mean over height and width of a transposed channels-last image is the pooled vector itself.
bool sink_spatial_mean(Rewriter& rw, const Node& node) {
  const Permutation perm = permutation_of(rw, node.in[0]);
  const auto axes = node.in.size() > 1 ? rw.ints(node.in[1]) : std::nullopt;
  if (perm != Permutation{0, 3, 1, 2} || !axes || axes->size() != 2) return false;
  std::vector<size_t> normal{ir::normal_axis((*axes)[0], 4), ir::normal_axis((*axes)[1], 4)};
  std::sort(normal.begin(), normal.end());
  const ValueId x = rw.producer(node.in[0], "transpose")->in[0];
  if (normal != std::vector<size_t>{2, 3} || rw.graph().type(x).dtype != tensor::DType::f32) return false;
  const ValueId pooled = rw.add("global_average_pool_nhwc", {x}, {}, node.from);
  const tensor::Dims to = *rw.dims(node.out[0]);
  if (to.size() == perm.size()) {  // gates of channels may run channels-last too, like the image
    rw.replace(node.out[0], rw.add("transpose", {pooled}, {{"perm", perm}}, node.from));
    return true;
  }
  const ValueId shape = rw.constant(
      tensor::Tensor::from<int64_t>({static_cast<int64_t>(to.size())}, std::span<const int64_t>(to)));
  rw.replace(node.out[0], rw.add("reshape", {pooled, shape}, {}, node.from));
  return true;
}

/// A transpose that keeps the order of all extents above 1 moves no bytes, so it becomes a view.
bool make_view(Rewriter& rw, const Node& node) {
  const auto from = rw.dims(node.in[0]), to = rw.dims(node.out[0]);
  const Permutation perm = node.attrs.get_ints("perm");
  if (!from || !to || perm.empty()) return false;
  Permutation wide;
  for (int64_t axis : perm) {
    if ((*from)[static_cast<size_t>(axis)] != 1) wide.push_back(axis);
  }
  if (!std::is_sorted(wide.begin(), wide.end())) return false;
  const ValueId shape = rw.constant(
      tensor::Tensor::from<int64_t>({static_cast<int64_t>(to->size())}, std::span<const int64_t>(*to)));
  rw.replace(node.out[0], rw.add("reshape", {node.in[0], shape}, {{"allowzero", int64_t{1}}}, node.from));
  return true;
}

bool cancel(Rewriter& rw, const Node& node) {
  const Permutation outer = node.attrs.get_ints("perm"), inner = permutation_of(rw, node.in[0]);
  if (outer.empty() || inner.empty() || outer != inverse(inner)) return false;
  rw.replace(node.out[0], rw.producer(node.in[0], "transpose")->in[0]);
  return true;
}

/// `makes_views`: transposes that move no bytes become views, which cannot be sunk any more.
bool sink_one(Rewriter& rw, const Node& node, bool makes_views) {
  const std::string_view op = node.op_name();
  if (node.out.empty() || node.in.empty() || !rw.dims(node.out[0])) return false;
  if (op == "transpose") return cancel(rw, node) || (makes_views && make_view(rw, node));
  if (op == "quantize_linear" || op == "dequantize_linear") return sink_quantization(rw, node);
  if (op == "qadd") return sink_quantized_add(rw, node);
  if (op == "batch_norm_train") return sink_batch_norm(rw, node);
  if (op == "group_norm" || op == "instance_norm") return sink_group_norm(rw, node);
  if (op == "concat") return sink_concat(rw, node);
  if (op == "pad") return sink_pad(rw, node);
  if (op == "reduce_mean" && sink_spatial_mean(rw, node)) return true;
  if (sink_past_axes(rw, node)) return true;
  // Ops that draw one random number per element in order would assign them differently.
  const ir::OpSchema& s = node.op->schema;
  return ir::is_elementwise(s) && !s.is_random && sink_elementwise(rw, node);
}

}  // namespace

namespace {

/// Moves transposes past every op that allows it, repeating until nothing changes.
size_t sink_all(ir::Graph& graph, bool makes_views) {
  size_t total = 0;
  for (size_t changes = 1; changes > 0;) {
    Rewriter rw(graph);
    changes = rw.for_each([&](ir::NodeId, const Node& seen) {
      // Read anew, since operands may have been replaced since the walk began.
      const Node* now = rw.graph().producer(seen.out[0]);
      return now != nullptr && sink_one(rw, Node(*now), makes_views);
    });
    graph.sort();
    total += changes;
  }
  return total;
}

/// A block after a channel shuffle can sink only after the shuffle has sunk, so consecutive blocks of this
/// kind need one round each.
constexpr int kMaxRounds = 32;

}  // namespace

size_t sink_transposes(ir::Graph& graph) {
  size_t total = 0;
  for (int round = 0; round < kMaxRounds; ++round) {
    total += merge_image_moves(graph);
    graph.sort();
    const size_t sunk = sink_all(graph, false);
    total += sunk;
    if (sunk == 0) break;
  }
  total += sink_all(graph, true);
  return total + merge_image_moves(graph);
}

}  // namespace trireme::passes
