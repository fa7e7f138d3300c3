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

/// The weights [experts, out, in] of a place, one expert's rows under the other's: [experts * out, in].
ValueId stacked(const Net& at, int64_t experts, const LinearSpec& spec) {
  const ValueId weight = at.param("weight", {experts, spec.out, spec.in}, spec.init);
  return at.builder().reshape(weight, {experts * spec.out, spec.in});
}

}  // namespace

ir::ValueId mixture(const Net& at, ir::ValueId x, const MixtureSpec& s) {
  Builder b = at.builder();
  const int64_t count = s.experts.count;
  base::require(count > 0 && s.experts.chosen > 0 && s.experts.chosen <= count, s.experts.chosen, " of ",
                count, " experts");
  const ValueId weights = routing(at, x, s);
  const Net experts = at.in(s.names.experts);
  const int64_t inner = s.experts.inner;
  const LinearSpec wide{.in = s.width, .out = inner, .init = s.weight};
  const auto by_all = [&](const std::string& name) {  // [batch, seq, experts * inner]
    const Net place = experts.in(name);
    return place.op("linear", {x, stacked(place, count, wide)}, {{"transposed", int64_t{1}}});
  };
  const ValueId gate = at.activation(by_all(s.names.expert_gate), s.activation);
  const ValueId gated = at.op("mul", {gate, by_all(s.names.expert_up)});
  // Weighted before the last product, which then sums over experts and channels at once.
  const ValueId share = b.op("unsqueeze", {weights, b.ints({3})});  // [batch, seq, experts, 1]
  const ValueId each = at.op("mul", {b.reshape(gated, {0, 0, count, inner}), share});
  const Net down = experts.in(s.names.expert_down);
  const ValueId weight = down.param("weight", {count, s.width, inner}, s.branch);
  const ValueId columns = b.reshape(b.transpose(weight, {0, 2, 1}), {count * inner, s.width});
  return down.op("matmul", {b.reshape(each, {0, 0, count * inner}), columns});
}

}  // namespace trireme::model::zoo
