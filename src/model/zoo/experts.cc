// Mixtures of experts as products over all experts, weighted by the router's choice.
#include "model/zoo/experts.h"

namespace trireme::model::zoo {
namespace {

using ir::ValueId;

/// How much each expert counts for each token: [batch, seq, experts], 0 for those not chosen.
ValueId routing(const Net& at, ValueId x, const MixtureSpec& s) {
  const int64_t count = s.experts.count;
  const ValueId scores =
      at.in(s.names.router).linear(x, {.in = s.width, .out = count, .init = s.weight, .has_bias = false});
  const ValueId all = at.op("softmax", {scores}, {{"axis", int64_t{-1}}});
  Builder b = at.builder();
  const std::vector<ValueId> top =
      b.ops("top_k", {all, b.ints({s.experts.chosen})}, {{"axis", int64_t{-1}}}, 2);  // [batch, seq, chosen]
  const ValueId off_on = b.graph().add_constant(tensor::Tensor::from<float>({2}, {0.0f, 1.0f}));
  const ValueId places = at.op("one_hot", {top[1], b.ints({count}), off_on}, {{"axis", int64_t{-1}}});
  const ValueId chosen = at.op("reduce_sum", {places, b.ints({-2})}, {{"keepdims", int64_t{0}}});
  const ValueId weights = at.op("mul", {all, chosen});
  if (!s.experts.is_normalized) return weights;
  return at.op("div", {weights, at.op("reduce_sum", {weights, b.ints({-1})}, {{"keepdims", int64_t{1}}})});
}

/// x [..., in] by each expert's weight [out, in] -> [experts, ..., out]; x [1, batch, seq, in] for all
/// experts.
ValueId by_experts(const Net& at, ValueId x, int64_t experts, const LinearSpec& spec) {
  Builder b = at.builder();
  const ValueId weight = at.param("weight", {experts, spec.out, spec.in}, spec.init);
  const ValueId turned = b.transpose(weight, {0, 2, 1});
  return b.op("matmul", {x, b.reshape(turned, {experts, 1, spec.in, spec.out})});
}

}  // namespace

ir::ValueId mixture(const Net& at, ir::ValueId x, const MixtureSpec& s) {
  Builder b = at.builder();
  const int64_t count = s.experts.count;
  base::require(count > 0 && s.experts.chosen > 0 && s.experts.chosen <= count, s.experts.chosen, " of ",
                count, " experts");
  const ValueId weights = routing(at, x, s);
  const Net experts = at.in(s.names.experts);
  const LinearSpec wide{.in = s.width, .out = s.experts.inner, .init = s.weight};
  const LinearSpec narrow{.in = s.experts.inner, .out = s.width, .init = s.branch};
  const ValueId rows = b.op("unsqueeze", {x, b.ints({0})});  // [1, batch, seq, width]
  const ValueId gate =
      at.activation(by_experts(experts.in(s.names.expert_gate), rows, count, wide), s.activation);
  const ValueId gated = at.op("mul", {gate, by_experts(experts.in(s.names.expert_up), rows, count, wide)});
  const ValueId each =
      by_experts(experts.in(s.names.expert_down), gated, count, narrow);  // [experts, batch, seq, width]
  // [batch, seq, experts] -> [experts, batch, seq, 1]
  const ValueId share = b.op("unsqueeze", {b.transpose(weights, {2, 0, 1}), b.ints({3})});
  return at.op("reduce_sum", {at.op("mul", {each, share}), b.ints({0})}, {{"keepdims", int64_t{0}}});
}

}  // namespace trireme::model::zoo
