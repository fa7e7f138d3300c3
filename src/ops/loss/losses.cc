// nll_loss and softmax_cross_entropy_loss: losses over classes with weights, ignored targets and reductions;
// their gradient.
#include "ops/grad.h"
#include "ops/loss/loss_cuts.h"
#include "ops/loss/loss_kernels.h"
#include "ops/loss/losses_expand.h"
#include "ops/table.h"
#include "ops/precision_rules.h"

namespace trireme::ops {
namespace {

using tensor::Dim;
using tensor::Shape;
using tensor::TensorType;

std::vector<ir::AttrSpec> class_loss_attrs() {
  return {{"ignore_index", "int", "targets of this class count neither in the loss nor in the mean"},
          {"reduction", "string", "none, sum or mean (weighted), default mean"}};
}

std::vector<TensorType> infer(const ir::NodeView& n) {
  const Shape &x = n.in[0].shape, &target = n.in[1].shape;
  const std::string reduction = n.attrs.get_string("reduction", "mean");
  base::require(reduction == "none" || reduction == "sum" || reduction == "mean", "unknown reduction '",
                reduction, "'");
  if (x.has_rank())
    base::require(x.rank() >= 2 && !(x[1].is_static() && x[1].value() == 0), "class loss of ", x.to_string(),
                  ", which has no class");
  if (x.is_static() && target.is_static()) {
    std::vector<Dim> want{x[0]};
    want.insert(want.end(), x.dims().begin() + 2, x.dims().end());
    base::require(target == Shape(std::move(want)), "targets ", target.to_string(), " for scores ",
                  x.to_string());
  }
  if (n.present(2) && n.in[2].shape.is_static() && x.has_rank() && x[1].is_static()) {
    base::require(n.in[2].shape == Shape{x[1]}, "class weights ", n.in[2].shape.to_string(), " for scores ",
                  x.to_string());
  }
  const Shape loss = reduction == "none" ? target : Shape{};
  return {{n.in[0].dtype, loss}, {n.in[0].dtype, x}};
}

/// Class weights are constants. The gradient of the log-probabilities flows back through log_softmax.
ir::GradFn loss_gradient(bool softmax) {
  return [softmax](ir::Graph& graph, const ir::Node& node, std::span<const ValueId> out_grads) {
    GradBuilder g(graph, node, out_grads);
    Gradients out = g.none();
    if (g.grad(0) != ir::kNoValue) {
      ir::Attrs attrs = g.attrs();
      attrs.set("softmax", int64_t{softmax});
      out[0] = g.op("class_loss_grad", {g.in(0), g.in(1), g.grad(0), g.in(2)}, attrs);
    }
    if (g.grad(1) != ir::kNoValue) {
      const ValueId term = g.op("log_softmax_grad", {g.grad(1), g.out(1)}, {{"axis", int64_t{1}}});
      out[0] = out[0] ? g.add(*out[0], term) : term;
    }
    return out;
  };
}

ir::OpSchema class_loss_grad() {
  ir::OpSchema s{.name = "class_loss_grad",
                 .doc =
                     "dx = dy weight[t] (p - [c == t]) with p = softmax(x) along axis 1 or 0; operands x, "
                     "target, weights or none, dy of the loss",
                 .cut = class_loss_grad_cut,
                 .min_in = 3,
                 .max_in = 4,
                 .attrs = class_loss_attrs()};
  s.attrs.push_back({"softmax", "int", "1: gradient of softmax_cross_entropy_loss, 0: of nll_loss"});
  s.infer = [](const ir::NodeView& n) { return std::vector{n.in[0]}; };
  s.expand = expand_class_loss_grad;
  s.why_no_grad = "second derivatives of the loss are not computed";
  return s;
}

/// Without softmax, the loss reads one score per target.
ir::CostFn loss_cost(double flop) {
  return [flop](const ir::NodeView& n) {
    const double scores = static_cast<double>(n.in[flop > 2 ? 0 : 1].shape.elements().value_or(0));
    ir::Cost c{.flop = flop * scores, .bytes = scores * 4 + static_cast<double>(tensor::bytes_of(n.in[1]))};
    if (n.out_count > 1) c.bytes += static_cast<double>(tensor::bytes_of(n.in[0]));
    return c;
  };
}

}  // namespace

std::vector<ir::OpDef> losses_ops() {
  ir::OpSchema nll{
      .name = "nll_loss",
      .doc = "-weight[t] x[n, t] with t = target[n], reduced; x [n, c, ...] holds log-probabilities",
      .precision = kLoss,
      .cut = class_loss_cut,
      .min_in = 2,
      .max_in = 3,
      .attrs = class_loss_attrs(),
      .infer = infer,
      .expand = expand_nll_loss,
      .cost = loss_cost(2),
      .grad = loss_gradient(false),
      .onnx = "NegativeLogLikelihoodLoss"};
  ir::OpSchema entropy{.name = "softmax_cross_entropy_loss",
                       .doc = "nll_loss of log_softmax(x) along axis 1; second result: the log-probabilities",
                       .precision = kLoss,
                       .cut = class_loss_cut,
                       .min_in = 2,
                       .max_in = 3,
                       .max_out = 2,
                       .attrs = class_loss_attrs(),
                       .infer = infer,
                       .expand = expand_cross_entropy_loss,
                       .cost = loss_cost(18),
                       .grad = loss_gradient(true),
                       .onnx = "SoftmaxCrossEntropyLoss"};
  return {{std::move(nll), nll_loss_cpu_kernels()},
          {class_loss_grad(), class_loss_grad_cpu_kernels()},
          {std::move(entropy), softmax_cross_entropy_loss_cpu_kernels()}};
}

}  // namespace trireme::ops
