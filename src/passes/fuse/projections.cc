// Joins the projections of queries, keys and values into one product, which attention reads in place.
#include <array>

#include "passes/fuse/transformer.h"
#include "passes/rewriter.h"
#include "tensor/repeated.h"

namespace trireme::passes {
namespace {

using ir::Node;
using ir::ValueId;

/// x W + bias, read only by attention, as [batch, seq, heads, head_dim].
struct Projection {
  Node linear;
  Node view;      ///< the reshape between the two
  int64_t width;  ///< columns of W

  ValueId x() const { return linear.in[0]; }
  ValueId bias() const { return linear.in.size() > 2 ? linear.in[2] : ir::kNoValue; }
  bool is_transposed() const { return linear.attrs.get_int("transposed", 0) != 0; }
};

/// A weight with known content that may be copied: a weight with repeated blocks would lose its compact form.
bool is_constant(const Rewriter& rw, ValueId id, size_t rank) {
  const tensor::Tensor* known = rw.known(id);
  return known != nullptr && known->dtype() == tensor::DType::f32 && known->rank() == rank &&
         known->elements() > 0 && !tensor::repetition_of(*known).block.defined();
}

std::optional<Projection> projection(const Rewriter& rw, ValueId id) {
  const auto view = rw.producer(id, "reshape");
  if (!view || !rw.single_use(id) || !rw.single_use(view->in[0])) return std::nullopt;
  const auto linear = rw.producer(view->in[0], "linear");
  if (!linear || linear->out.size() != 1 || (linear->in.size() > 3 && linear->in[3] != ir::kNoValue))
    return std::nullopt;
  if (linear->attrs.get_string("activation", "none") != "none" || !is_constant(rw, linear->in[1], 2))
    return std::nullopt;
  const auto flat = rw.dims(view->in[0]), heads = rw.dims(id);
  if (!flat || !heads || flat->size() != 3 || heads->size() != 4) return std::nullopt;
  if ((*flat)[0] != (*heads)[0] || (*flat)[1] != (*heads)[1]) return std::nullopt;
  Projection p{*linear, *view, flat->back()};
  if (p.bias() != ir::kNoValue && !is_constant(rw, p.bias(), 1)) return std::nullopt;
  return p;
}

using Three = std::array<Projection, 3>;

/// The joint product: x [.., k] by [k, q + k + v columns], plus the biases if there are any.
ValueId joined(Rewriter& rw, const Three& parts) {
  const Node& first = parts[0].linear;
  std::vector<ValueId> weights, biases;
  bool has_bias = false;
  for (const Projection& p : parts) {
    weights.push_back(p.linear.in[1]);
    has_bias = has_bias || p.bias() != ir::kNoValue;
  }
  const int64_t across = parts[0].is_transposed() ? 0 : 1;
  std::vector<ValueId> in{first.in[0], rw.add("concat", std::move(weights), {{"axis", across}}, first.from)};
  if (has_bias) {
    for (const Projection& p : parts) {
      const bool own = p.bias() != ir::kNoValue;
      biases.push_back(own ? p.bias() : rw.constant(tensor::Tensor::zeros(tensor::DType::f32, {p.width})));
    }
    in.push_back(rw.add("concat", std::move(biases), {{"axis", int64_t{0}}}, first.from));
  }
  return rw.add("linear", std::move(in), first.attrs, first.from);
}

bool join(Rewriter& rw, const Node& node) {
  // packed_attention takes no others.
  if (node.out.size() > 1 || node.in.size() > kMaskEnd) return false;
  const auto q = projection(rw, node.in[0]), k = projection(rw, node.in[1]), v = projection(rw, node.in[2]);
  if (!q || !k || !v || q->x() != k->x() || k->x() != v->x()) return false;
  if (q->is_transposed() != k->is_transposed() || k->is_transposed() != v->is_transposed()) return false;
  const tensor::Dims qd = *rw.dims(node.in[0]), kd = *rw.dims(node.in[1]), vd = *rw.dims(node.in[2]);
  // packed_attention requires heads of one size, and as many value heads as key heads.
  if (qd[3] != kd[3] || kd[3] != vd[3] || kd[2] != vd[2]) return false;
  const Three parts{*q, *k, *v};
  const ValueId whole = joined(rw, parts);
  Node split;
  split.attrs.set("axis", int64_t{-1});
  split.in = {whole, rw.constant(tensor::Tensor::from<int64_t>({3}, {q->width, k->width, v->width}))};
  split.from = q->linear.from;
  const std::vector<ValueId> pieces = rw.add_all("split", split, 3);
  for (size_t i = 0; i < 3; ++i) rw.replace(parts[i].linear.out[0], pieces[i]);
  return true;
}

}  // namespace

size_t join_projections(ir::Graph& graph) {
  Rewriter rw(graph);
  return rw.for_each("attention_bsnd", [&](ir::NodeId, const Node& node) { return join(rw, node); });
}

}  // namespace trireme::passes
