// The forms in which exporters write layer norm, RMS norm and softmax, gathered back into one op.
#include "passes/rewriter.h"
#include "passes/fuse/transformer.h"

namespace trireme::passes {
namespace {

using ir::Node;
using ir::ValueId;

/// The operand of a reduction of kind `op` over the last axis with kept dimension.
std::optional<ValueId> last_axis_reduction(const Rewriter& rw, ValueId id, std::string_view op) {
  const auto reduce = rw.producer(id, op);
  if (!reduce || reduce->attrs.get_int("keepdims", 1) == 0 || reduce->in.size() < 2) return std::nullopt;
  const auto axes = rw.ints(reduce->in[1]);
  const auto dims = rw.dims(reduce->in[0]);
  if (!axes || axes->size() != 1 || !dims || dims->empty()) return std::nullopt;
  if (ir::normal_axis((*axes)[0], dims->size()) != dims->size() - 1) return std::nullopt;
  return reduce->in[0];
}

/// x of x^2, written as pow(x, 2) or mul(x, x).
std::optional<ValueId> squared(const Rewriter& rw, ValueId id) {
  if (const auto pow = rw.producer(id, "pow"); pow && rw.is_scalar(pow->in[1], 2)) return pow->in[0];
  if (const auto mul = rw.producer(id, "mul"); mul && mul->in[0] == mul->in[1]) return mul->in[0];
  return std::nullopt;
}

/// sqrt(mean(v^2) + eps): v and eps.
struct RootMeanSquare {
  ValueId v;
  double eps;
};

std::optional<RootMeanSquare> root_mean_square(const Rewriter& rw, ValueId id) {
  ValueId inside = ir::kNoValue;
  if (const auto root = rw.producer(id, "sqrt")) inside = root->in[0];
  if (const auto pow = rw.producer(id, "pow"); pow && rw.is_scalar(pow->in[1], 0.5)) inside = pow->in[0];
  const auto add = inside == ir::kNoValue ? std::nullopt : rw.producer(inside, "add");
  const auto parts = add ? rw.scalar_operand(*add) : std::nullopt;
  if (!parts) return std::nullopt;
  const auto square = last_axis_reduction(rw, parts->second, "reduce_mean");
  const auto v = square ? squared(rw, *square) : std::nullopt;
  if (!v) return std::nullopt;
  return RootMeanSquare{*v, parts->first};
}

/// The node normalises `value`: value / sqrt(mean(v^2) + eps), as div or as mul by the reciprocal.
struct Normalised {
  ValueId value;
  RootMeanSquare rms;
};

std::optional<Normalised> normalised(const Rewriter& rw, const Node& node) {
  if (node.op_name() == "div") {
    const auto rms = root_mean_square(rw, node.in[1]);
    return rms ? std::optional(Normalised{node.in[0], *rms}) : std::nullopt;
  }
  if (node.op_name() != "mul") return std::nullopt;
  for (size_t side : {size_t{0}, size_t{1}}) {
    ValueId root = ir::kNoValue;
    if (const auto r = rw.producer(node.in[1 - side], "reciprocal")) root = r->in[0];
    if (const auto d = rw.producer(node.in[1 - side], "div"); d && rw.is_scalar(d->in[0], 1)) root = d->in[1];
    const auto rms = root == ir::kNoValue ? std::nullopt : root_mean_square(rw, root);
    if (rms) return Normalised{node.in[side], *rms};
  }
  return std::nullopt;
}

/// The single reader `op` of `id` and its constant vector operand [d]; nullopt if it is not of that form.
struct AffineStep {
  Node node;
  ValueId vector;
};

std::optional<AffineStep> affine_reader(Rewriter& rw, ValueId id, std::string_view op, int64_t d) {
  if (!rw.single_use(id)) return std::nullopt;
  const auto readers = rw.graph().uses();
  for (ir::NodeId n : readers[ir::index(id)]) {
    const Node& node = rw.graph().node(n);
    if (node.op_name() != op || node.out.empty() || rw.uses(node.out[0]) == 0) continue;
    const ValueId other = node.in[0] == id ? node.in[1] : node.in[0];
    const auto w = rw.weight_dims(other);
    if (!w || tensor::element_count(*w) != d || w->empty() || w->back() != d) continue;
    return AffineStep{node, rw.reshaped_weight(other, {d}, node.from)};
  }
  return std::nullopt;
}

bool gather_norm(Rewriter& rw, const Node& node) {
  const auto n = normalised(rw, node);
  if (!n || n->value != n->rms.v || rw.graph().type(node.out[0]).dtype != tensor::DType::f32) return false;
  const int64_t d = rw.dims(n->value)->back();
  const auto centred = rw.producer(n->value, "sub");
  const bool is_layer = centred && last_axis_reduction(rw, centred->in[1], "reduce_mean") == centred->in[0];
  const auto scale = affine_reader(rw, node.out[0], "mul", d);
  if (!scale) return false;
  ir::Attrs attrs{{"axis", int64_t{-1}}, {"epsilon", n->rms.eps}};
  if (!is_layer) {
    return rw.replace_same(scale->node.out[0],
                           rw.add("rms_norm", {n->value, scale->vector}, attrs, node.from));
  }
  const auto bias = affine_reader(rw, scale->node.out[0], "add", d);
  std::vector<ValueId> in{centred->in[0], scale->vector};
  if (bias) in.push_back(bias->vector);
  return rw.replace_same(bias ? bias->node.out[0] : scale->node.out[0],
                         rw.add("layer_norm", in, attrs, node.from));
}

bool gather_one_softmax(Rewriter& rw, const Node& div) {
  const auto top = rw.producer(div.in[0], "exp");
  const auto sum = last_axis_reduction(rw, div.in[1], "reduce_sum");
  if (!top || !sum || *sum != div.in[0]) return false;
  const auto shifted = rw.producer(top->in[0], "sub");
  const bool stable = shifted && last_axis_reduction(rw, shifted->in[1], "reduce_max") == shifted->in[0];
  const ValueId x = stable ? shifted->in[0] : top->in[0];
  return rw.replace_same(div.out[0], rw.add("softmax", {x}, {{"axis", int64_t{-1}}}, div.from));
}

}  // namespace

size_t gather_norms(ir::Graph& graph) {
  Rewriter rw(graph);
  return rw.for_each([&](ir::NodeId, const Node& node) {
    return (node.op_name() == "div" || node.op_name() == "mul") && gather_norm(rw, node);
  });
}

size_t gather_softmax(ir::Graph& graph) {
  Rewriter rw(graph);
  return rw.for_each("div", [&](ir::NodeId, const Node& node) { return gather_one_softmax(rw, node); });
}

}  // namespace trireme::passes
