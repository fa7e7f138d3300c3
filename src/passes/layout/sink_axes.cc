// Renumbers the axes that an op names when a transpose moves from before the op to after it.
#include "passes/layout/sink_axes.h"

#include <algorithm>

namespace trireme::passes {
namespace {

using ir::Node;
using ir::ValueId;
using Permutation = std::vector<int64_t>;

/// The source and the permutation of the transpose before operand 0.
struct Before {
  ValueId x;
  Permutation perm;
};

std::optional<Before> transpose_before(const Rewriter& rw, const Node& node) {
  const auto t = rw.producer(node.in[0], "transpose");
  if (!t) return std::nullopt;
  Before before{t->in[0], t->attrs.get_ints("perm")};
  const auto dims = rw.dims(node.in[0]);
  if (!dims || before.perm.size() != dims->size()) return std::nullopt;
  return before;
}

/// Applies the node to the transpose's source, and the transpose to each of its results.
bool finish(Rewriter& rw, const Node& node, Node sunk, const Before& before) {
  sunk.in[0] = before.x;
  const std::vector<ValueId> results = rw.add_all(node.op_name(), sunk, node.out.size());
  for (size_t i = 0; i < results.size(); ++i) {
    if (node.out[i] == ir::kNoValue) continue;
    rw.replace(node.out[i], rw.add("transpose", {results[i]}, {{"perm", before.perm}}, node.from));
  }
  return true;
}

ValueId constant_of(Rewriter& rw, const std::vector<int64_t>& values) {
  return rw.constant(
      tensor::Tensor::from<int64_t>({static_cast<int64_t>(values.size())}, std::span<const int64_t>(values)));
}

std::vector<int64_t> moved_axes(const std::vector<int64_t>& axes, const Permutation& perm) {
  std::vector<int64_t> moved;
  for (const int64_t axis : axes) moved.push_back(perm[ir::normal_axis(axis, perm.size())]);
  return moved;
}

/// A constant that consists of `groups` lists with one number per axis, permuted to the axes before the
/// transpose; nullopt if its content is unknown.
std::optional<ValueId> moved_lists(Rewriter& rw, ValueId id, const Permutation& perm, size_t groups) {
  const tensor::Tensor* lists = rw.known(id);
  const size_t rank = perm.size();
  if (lists == nullptr || lists->elements() != static_cast<int64_t>(groups * rank)) return std::nullopt;
  tensor::Tensor moved = tensor::Tensor::empty(lists->dtype(), lists->dims());
  const size_t bytes = tensor::bytes_of(lists->type()) / (groups * rank);
  for (size_t i = 0; i < groups * rank; ++i) {
    const size_t to = i / rank * rank + static_cast<size_t>(perm[i % rank]);
    std::copy_n(lists->raw() + i * bytes, bytes, moved.mutable_raw() + to * bytes);
  }
  return rw.constant(std::move(moved));
}

bool sink_resize(Rewriter& rw, const Node& node, const Before& before) {
  Node sunk = node;
  if (node.attrs.has("axes")) {
    sunk.attrs.set("axes", moved_axes(node.attrs.get_ints("axes"), before.perm));
    return finish(rw, node, std::move(sunk), before);
  }
  for (size_t i = 1; i < node.in.size(); ++i) {
    if (!node.has_operand(i)) continue;
    const tensor::Tensor* value = rw.known(node.in[i]);
    if (value != nullptr && value->elements() == 0) continue;  // an empty tensor also means absent
    // roi has two lists, the begins and the ends; scales and sizes have one.
    const auto moved = moved_lists(rw, node.in[i], before.perm, i == 1 ? 2 : 1);
    if (!moved) return false;
    sunk.in[i] = *moved;
  }
  return finish(rw, node, std::move(sunk), before);
}

/// The operands are x, starts, ends, axes, steps; without axes they refer to the first axes.
bool sink_slice(Rewriter& rw, const Node& node, const Before& before) {
  const auto starts = node.has_operand(1) ? rw.ints(node.in[1]) : std::nullopt;
  if (!starts) return false;
  std::vector<int64_t> axes;
  if (node.has_operand(3)) {
    const auto given = rw.ints(node.in[3]);
    if (!given) return false;
    axes = *given;
  } else {
    for (size_t i = 0; i < starts->size(); ++i) axes.push_back(static_cast<int64_t>(i));
  }
  Node sunk = node;
  sunk.in.resize(std::max<size_t>(4, node.in.size()), ir::kNoValue);
  sunk.in[3] = constant_of(rw, moved_axes(axes, before.perm));
  return finish(rw, node, std::move(sunk), before);
}

bool sink_axis_attribute(Rewriter& rw, const Node& node, const Before& before, int64_t absent) {
  Node sunk = node;
  const size_t axis = ir::normal_axis(node.attrs.get_int("axis", absent), before.perm.size());
  sunk.attrs.set("axis", before.perm[axis]);
  return finish(rw, node, std::move(sunk), before);
}

/// Reductions over known axes that keep them as extents of 1, or that remove them if the remaining axes have
/// the same order before and after the transpose.
bool sink_reduction(Rewriter& rw, const Node& node, const Before& before) {
  const auto axes = node.has_operand(1) ? rw.ints(node.in[1]) : std::nullopt;
  if (!axes || axes->empty()) return false;
  const std::vector<int64_t> moved = moved_axes(*axes, before.perm);
  Node sunk = node;
  sunk.in[1] = constant_of(rw, moved);
  if (node.attrs.get_int("keepdims", 1) != 0) return finish(rw, node, std::move(sunk), before);
  std::vector<int64_t> left = before.perm;
  std::erase_if(left,
                [&](int64_t axis) { return std::find(moved.begin(), moved.end(), axis) != moved.end(); });
  if (!std::is_sorted(left.begin(), left.end())) return false;
  sunk.in[0] = before.x;
  rw.replace(node.out[0], rw.add(node.op_name(), std::move(sunk.in), std::move(sunk.attrs), node.from));
  return true;
}

/// True for reductions with operands x and axes and the attribute keepdims.
bool is_reduction(const ir::OpSchema& schema) {
  const auto keeps = [](const ir::AttrSpec& attr) { return attr.name == "keepdims"; };
  return schema.max_in == 2 && std::any_of(schema.attrs.begin(), schema.attrs.end(), keeps);
}

}  // namespace

bool sink_past_axes(Rewriter& rw, const Node& node) {
  const std::string_view op = node.op_name();
  const bool reduces = is_reduction(node.op->schema);
  if (!reduces && op != "resize" && op != "slice" && op != "split" && op != "softmax") return false;
  const auto before = transpose_before(rw, node);
  if (!before) return false;
  if (reduces) return sink_reduction(rw, node, *before);
  if (op == "resize") return sink_resize(rw, node, *before);
  if (op == "slice") return sink_slice(rw, node, *before);
  return sink_axis_attribute(rw, node, *before, op == "softmax" ? -1 : 0);
}

}  // namespace trireme::passes
