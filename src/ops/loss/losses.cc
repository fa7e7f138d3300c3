// nll_loss and softmax_cross_entropy_loss: class losses with weights, ignored targets and reductions.
#include "ops/loss/loss_kernels.h"
#include "ops/table.h"

namespace trireme::ops {
namespace {

using tensor::Dim;
using tensor::Shape;
using tensor::TensorType;

std::vector<ir::AttrSpec> attrs() {
  return {{"ignore_index", "int", "targets of this class count neither in the loss nor in the mean"},
          {"reduction", "string", "none, sum or mean (weighted), default mean"}};
}

std::vector<TensorType> infer(const ir::NodeView& n) {
  const Shape &x = n.in[0].shape, &target = n.in[1].shape;
  const std::string reduction = n.attrs.get_string("reduction", "mean");
  base::require(reduction == "none" || reduction == "sum" || reduction == "mean", "unknown reduction '",
                reduction, "'");
  if (x.has_rank())
    base::require(x.rank() >= 2, "class loss of ", x.to_string(), ", which has no class axis");
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

}  // namespace

std::vector<ir::OpDef> losses_ops() {
  ir::OpSchema nll{
      .name = "nll_loss",
      .doc = "-weight[t] x[n, t] with t = target[n], reduced; x [n, c, ...] holds log-probabilities",
      .min_in = 2,
      .max_in = 3,
      .attrs = attrs(),
      .infer = infer,
      .onnx = "NegativeLogLikelihoodLoss"};
  ir::OpSchema entropy{.name = "softmax_cross_entropy_loss",
                       .doc = "nll_loss of log_softmax(x) along axis 1; second result: the log-probabilities",
                       .min_in = 2,
                       .max_in = 3,
                       .max_out = 2,
                       .attrs = attrs(),
                       .infer = infer,
                       .onnx = "SoftmaxCrossEntropyLoss"};
  return {{std::move(nll), nll_loss_cpu_kernels()},
          {std::move(entropy), softmax_cross_entropy_loss_cpu_kernels()}};
}

}  // namespace trireme::ops
