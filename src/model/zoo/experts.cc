// Mixtures of experts: the router chooses experts, and products over experts compute the chosen ones.
#include "model/zoo/experts.h"

namespace trireme::model::zoo {
namespace {

using ir::ValueId;

/// The router's result for each token.
struct Routing {
  ValueId chosen;  ///< i64 [batch, seq, chosen], the likeliest first
  ValueId shares;  ///< [batch, seq, chosen]
};

Routing routing(const Net& at, ValueId x, const MixtureSpec& s) {
  const LinearSpec spec{
      .in = s.width, .out = s.experts.count, .init = s.weight, .has_bias = s.experts.has_bias};
  const ValueId scores = at.in(s.names.router).linear(x, spec);
  const ValueId all = at.op("softmax", {scores}, {{"axis", int64_t{-1}}});
  Builder b = at.builder();
  const std::vector<ValueId> top =
      b.ops("top_k", {all, b.ints({s.experts.chosen})}, {{"axis", int64_t{-1}}}, 2);
  if (!s.experts.is_normalized) return {top[1], top[0]};
  const ValueId sum = at.op("reduce_sum", {top[0], b.ints({-1})}, {{"keepdims", int64_t{1}}});
  return {top[1], at.op("div", {top[0], sum})};
}

/// gate [..], up [..] -> the operand of the last product.
ValueId gated(const Net& at, ValueId gate, ValueId up, const MixtureSpec& s) {
  if (s.experts.clamp == 0) return at.op("mul", {at.activation(gate, s.activation), up});
  // gpt-oss: min(g, c) sigmoid(a min(g, c)) (clamp(u, -c, c) + 1).
  Builder b = at.builder();
  const auto scalar = [&](double v) { return b.scalar(static_cast<float>(v)); };
  const ValueId most = scalar(s.experts.clamp);
  gate = at.op("min", {gate, most});
  up = at.op("max", {at.op("min", {up, most}), scalar(-s.experts.clamp)});
  const ValueId slope = at.op("sigmoid", {at.op("mul", {gate, scalar(s.experts.slope)})});
  return at.op("mul", {at.op("mul", {gate, slope}), at.op("add", {up, scalar(1)})});
}

/// sigmoid(gate(x)) down(act(gate(x)) * up(x)) of the expert that all tokens use.
ValueId shared_expert(const Net& at, ValueId x, const MixtureSpec& s) {
  const Net place = at.in(s.names.shared_expert);
  const LinearSpec wide{.in = s.width, .out = s.experts.shared_inner, .init = s.weight, .has_bias = false};
  const LinearSpec narrow{.in = s.experts.shared_inner, .out = s.width, .init = s.branch, .has_bias = false};
  const ValueId gate = at.activation(place.in(s.names.shared_gate).linear(x, wide), s.activation);
  const ValueId inner = at.op("mul", {gate, place.in(s.names.shared_up).linear(x, wide)});
  const ValueId y = place.in(s.names.shared_down).linear(inner, narrow);
  const LinearSpec one{.in = s.width, .out = 1, .init = s.weight, .has_bias = false};
  return at.op("mul", {at.op("sigmoid", {at.in(s.names.shared_router).linear(x, one)}), y});
}

}  // namespace

ir::ValueId mixture(const Net& at, ir::ValueId x, const MixtureSpec& s) {
  const int64_t count = s.experts.count, inner = s.experts.inner;
  base::require(count > 0 && s.experts.chosen > 0 && s.experts.chosen <= count, s.experts.chosen, " of ",
                count, " experts");
  const Routing r = routing(at, x, s);
  const Net experts = at.in(s.names.experts);
  /// x [batch, seq, (chosen,) in] -> [batch, seq, chosen, out]; with shares, their sum [batch, seq, out].
  const auto product = [&](const std::string& name, ValueId rows, const LinearSpec& spec, ValueId shares) {
    const Net place = experts.in(name);
    const ValueId weight = place.param("weight", {count, spec.out, spec.in}, spec.init);
    const ValueId bias = spec.has_bias ? place.param("bias", {count, spec.out}, Init::zeros()) : ir::kNoValue;
    std::vector<ValueId> in{rows, r.chosen, weight, bias, shares};
    while (in.back() == ir::kNoValue) in.pop_back();
    return place.op("expert_linear", std::move(in));
  };
  const bool has_bias = s.experts.has_bias;
  const LinearSpec wide{.in = s.width, .out = inner, .init = s.weight, .has_bias = has_bias};
  const LinearSpec narrow{.in = inner, .out = s.width, .init = s.branch, .has_bias = has_bias};
  const ValueId gate = product(s.names.expert_gate, x, wide, ir::kNoValue);
  const ValueId up = product(s.names.expert_up, x, wide, ir::kNoValue);
  const ValueId y = product(s.names.expert_down, gated(experts, gate, up, s), narrow, r.shares);
  return s.experts.shared_inner == 0 ? y : at.op("add", {y, shared_expert(at, x, s)});
}

}  // namespace trireme::model::zoo
