// Gradients of the ONNX class losses against finite differences: weights, ignored targets, reductions, more
// axes.
#include "ops/test_grad.h"

namespace trireme::ops {
namespace {

using tensor::DType;
using tensor::Tensor;

TEST(ClassLosses, GradientsMatchFiniteDifferences) {
  const Tensor x = testing::random_tensor(DType::f64, {3, 4, 2}, -2, 2, 1);
  const Tensor weights = testing::random_tensor(DType::f64, {4}, 0.5, 2, 2);
  const Tensor wide = Tensor::from<int64_t>({3, 2}, std::vector<int64_t>{0, 3, 1, 2, 1, 0});
  const Tensor narrow = Tensor::from<int32_t>({3, 2}, std::vector<int32_t>{0, 3, 1, 2, 1, 0});
  for (const std::string op : {"nll_loss", "softmax_cross_entropy_loss"}) {
    for (const std::string reduction : {"none", "sum", "mean"}) {
      for (int form = 0; form < 4; ++form) {
        ir::Attrs attrs{{"reduction", reduction}};
        if (form & 1) attrs.set("ignore_index", int64_t{1});
        std::vector<Tensor> in{x, form & 1 ? narrow : wide};
        if (form & 2) in.push_back(weights);
        testing::expect_gradient({.op = op, .in = in, .attrs = attrs, .skip = {2}});
        if (op == "nll_loss") continue;
        testing::expect_gradient({.op = op, .in = in, .attrs = attrs, .results = 2, .skip = {2}});
      }
    }
  }
}

}  // namespace
}  // namespace trireme::ops
