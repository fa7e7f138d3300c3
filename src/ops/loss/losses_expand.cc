// nll_loss, softmax_cross_entropy_loss and their gradient in simpler ops, for devices without kernels.
#include "ops/loss/losses_expand.h"

namespace trireme::ops {
namespace {

using tensor::Dims;
using tensor::DType;

/// The operands of loss and gradient: scores [n, c, ...], targets [n, ...], class weights.
struct ClassLoss {
  GradBuilder& g;
  ValueId scores, target, weights;
  int64_t classes;
  DType wide;  // 16-bit floats are summed in f32
  ValueId valid = ir::kNoValue, safe = ir::kNoValue;

  ClassLoss(GradBuilder& builder, size_t weights_at)
      : g(builder),
        scores(builder.in(0)),
        target(builder.type(builder.in(1)).dtype == DType::i64
                   ? builder.in(1)
                   : builder.op("cast", {builder.in(1)}, {{"to", int64_t{7}}})),
        weights(builder.in(weights_at)),
        classes(builder.dims(builder.in(0))[1]),
        wide(builder.type(builder.in(0)).dtype == DType::f64 ? DType::f64 : DType::f32) {
    valid = g.op("and", {g.op("greater_or_equal", {target, g.scalar(0, target)}),
                         g.op("less", {target, g.scalar(double(classes), target)})});
    if (g.attrs().has("ignore_index")) {
      const ValueId ignored = g.scalar(double(g.attrs().get_int("ignore_index", 0)), target);
      valid = g.op("and", {valid, g.op("not", {g.op("equal", {target, ignored})})});
    }
    safe = g.op("where", {valid, target, g.scalar(0, target)});
  }

  ValueId widened(ValueId x) { return g.type(x).dtype == wide ? x : g.op("cast", {x}, {{"to", int64_t{1}}}); }
  ValueId narrowed(ValueId x) { return g.type(scores).dtype == wide ? x : g.op("cast_like", {x, scores}); }
  /// [n, ...] -> [n, 1, ...].
  ValueId with_class_axis(ValueId x) {
    Dims dims = g.dims(x);
    dims.insert(dims.begin() + 1, 1);
    return g.reshape(x, dims);
  }
  /// The weight of every target; 0 if it is ignored.
  ValueId weight_of_targets() {
    const ValueId zero = g.constant(zero_of(wide)), one = g.constant(one_of(wide));
    const ValueId own = weights == ir::kNoValue ? one : g.op("gather", {widened(weights), safe});
    return g.op("where", {valid, own, zero});
  }
  static tensor::Tensor number(DType type, double v) {
    return type == DType::f64 ? tensor::Tensor::from<double>({}, {v})
                              : tensor::Tensor::from<float>({}, {static_cast<float>(v)});
  }
  static tensor::Tensor zero_of(DType type) { return number(type, 0); }
  static tensor::Tensor one_of(DType type) { return number(type, 1); }
  std::vector<int64_t> all_axes(ValueId x) {
    std::vector<int64_t> axes;
    for (size_t d = 0; d < g.dims(x).size(); ++d) axes.push_back(static_cast<int64_t>(d));
    return axes;
  }
  ValueId total(ValueId x) { return g.reduce_sum(x, all_axes(x), false); }

  ValueId loss(ValueId log_probabilities) {
    const std::string reduction = g.attrs().get_string("reduction", "mean");
    const ValueId picked =
        g.op("gather_elements", {log_probabilities, with_class_axis(safe)}, {{"axis", int64_t{1}}});
    const ValueId of_target = widened(g.reshape(picked, g.dims(target)));
    const ValueId weight = weight_of_targets();
    // An infinite score of an ignored target must give 0, not NaN.
    const ValueId term = g.op("where", {valid, g.neg(g.mul(weight, of_target)), g.constant(zero_of(wide))});
    if (reduction == "none") return narrowed(term);
    const ValueId sum = total(term);
    return narrowed(reduction == "sum" ? sum : g.div(sum, total(weight)));
  }
};

}  // namespace

std::vector<ValueId> expand_nll_loss(ir::Graph& graph, const ir::Node& given) {
  const ir::Node node = given;  // a copy, since adding nodes moves the original
  GradBuilder g(graph, node, {});
  return {ClassLoss(g, 2).loss(g.in(0))};
}

std::vector<ValueId> expand_cross_entropy_loss(ir::Graph& graph, const ir::Node& given) {
  const ir::Node node = given;
  GradBuilder g(graph, node, {});
  const ValueId log_probabilities = g.op("log_softmax", {g.in(0)}, {{"axis", int64_t{1}}});
  return {ClassLoss(g, 2).loss(log_probabilities), log_probabilities};
}

std::vector<ValueId> expand_class_loss_grad(ir::Graph& graph, const ir::Node& given) {
  const ir::Node node = given;
  GradBuilder g(graph, node, {});
  ClassLoss loss(g, 3);
  const std::string reduction = g.attrs().get_string("reduction", "mean");
  const ValueId weight = loss.weight_of_targets(), dy = loss.widened(g.in(2));
  ValueId up = g.mul(weight, dy);
  if (reduction == "mean") up = g.div(up, loss.total(weight));
  const tensor::Tensor values = loss.wide == DType::f64 ? tensor::Tensor::from<double>({2}, {0, 1})
                                                        : tensor::Tensor::from<float>({2}, {0, 1});
  const ValueId is_target =
      g.op("one_hot", {loss.safe, g.ints({loss.classes}), g.constant(values)}, {{"axis", int64_t{1}}});
  ValueId share = g.neg(is_target);
  if (g.attrs().get_int("softmax", 0) != 0) {
    const ValueId p = g.op("softmax", {g.in(0)}, {{"axis", int64_t{1}}});
    share = g.sub(loss.widened(p), is_target);
  }
  const ValueId dx = g.mul(loss.with_class_axis(up), share);
  const ValueId zero = g.constant(ClassLoss::zero_of(loss.wide));
  return {loss.narrowed(g.op("where", {loss.with_class_axis(loss.valid), dx, zero}))};
}

}  // namespace trireme::ops
