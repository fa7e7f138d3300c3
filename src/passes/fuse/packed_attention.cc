// Lets attention read queries, keys and values in place if they are slices of one projection.
#include "passes/rewriter.h"
#include "passes/fuse/transformer.h"

namespace trireme::passes {
namespace {

using ir::Node;
using ir::ValueId;

/// A slice of the last axis of `whole`, viewed as [batch, seq, heads, head_dim].
struct Part {
  ValueId whole;
  int64_t offset;
};

/// The offset of result `id` of the split along the last axis.
std::optional<int64_t> offset_in(const Rewriter& rw, const Node& split, ValueId id) {
  int64_t offset = 0;
  for (ValueId out : split.out) {
    if (out == id) return offset;
    const auto dims = rw.dims(out);
    if (!dims) return std::nullopt;
    offset += dims->back();
  }
  return std::nullopt;
}

/// x[:, :, start : end] with steps of 1.
std::optional<Part> sliced(const Rewriter& rw, const Node& slice) {
  const auto axes = slice.in.size() > 3 && slice.in[3] != ir::kNoValue ? rw.ints(slice.in[3]) : std::nullopt;
  const auto start = rw.ints(slice.in[1]);
  const bool steps =
      slice.in.size() > 4 && slice.in[4] != ir::kNoValue && rw.ints(slice.in[4]) != std::vector<int64_t>{1};
  const auto from = rw.dims(slice.in[0]);
  if (!axes || !start || steps || !from || axes->size() != 1 || start->at(0) < 0) return std::nullopt;
  if (ir::normal_axis(axes->at(0), from->size()) != from->size() - 1) return std::nullopt;
  return Part{slice.in[0], start->at(0)};
}

std::optional<Part> part(const Rewriter& rw, ValueId id) {
  const auto view = rw.producer(id, "reshape");
  if (!view) return std::nullopt;
  const auto flat = rw.dims(view->in[0]), heads = rw.dims(id);
  if (!flat || !heads || flat->size() != 3 || heads->size() != 4) return std::nullopt;
  if ((*flat)[0] * (*flat)[1] != (*heads)[0] * (*heads)[1]) return std::nullopt;
  if (const auto slice = rw.producer(view->in[0], "slice")) return sliced(rw, *slice);
  const auto split = rw.producer(view->in[0], "split");
  if (!split || ir::normal_axis(split->attrs.get_int("axis", 0), 3) != 2) return std::nullopt;
  const auto offset = offset_in(rw, *split, view->in[0]);
  if (!offset) return std::nullopt;
  return Part{split->in[0], *offset};
}

bool pack(Rewriter& rw, const Node& node) {
  const auto q = part(rw, node.in[0]), k = part(rw, node.in[1]), v = part(rw, node.in[2]);
  if (!q || !k || !v || q->whole != k->whole || k->whole != v->whole) return false;
  if (node.out.size() > 1 || node.in.size() > kMaskEnd) return false;  // sinks are not supported there
  const tensor::Dims qd = *rw.dims(node.in[0]), kd = *rw.dims(node.in[1]), vd = *rw.dims(node.in[2]);
  const int64_t heads = qd[2], kv_heads = kd[2], d = qd[3];
  const bool in_order = q->offset == 0 && k->offset == heads * d && v->offset == (heads + kv_heads) * d;
  if (!in_order || kd[3] != d || vd[3] != d || vd[2] != kv_heads) return false;
  if (rw.dims(q->whole)->back() != (heads + 2 * kv_heads) * d) return false;
  std::vector<ValueId> in{q->whole};
  const tensor::Dims flat{qd[0], qd[1], rw.dims(q->whole)->back()};
  if (rw.dims(q->whole) != flat)  // the same rows with other leading extents
    in[0] =
        rw.add("reshape", {q->whole, rw.constant(tensor::Tensor::from<int64_t>({3}, flat))}, {}, node.from);
  if (node.in.size() > 3 && node.in[3] != ir::kNoValue) in.push_back(node.in[3]);
  ir::Attrs attrs = node.attrs;
  attrs.set("heads", heads).set("kv_heads", kv_heads);
  const ValueId y = rw.add("attention_qkv", std::move(in), std::move(attrs), node.from);
  const ValueId shape = rw.constant(tensor::Tensor::from<int64_t>({4}, qd));
  return rw.replace_same(node.out[0], rw.add("reshape", {y, shape}, {}, node.from));
}

}  // namespace

size_t pack_attention(ir::Graph& graph) {
  Rewriter rw(graph);
  return rw.for_each("attention_bsnd", [&](ir::NodeId, const Node& node) { return pack(rw, node); });
}

}  // namespace trireme::passes
