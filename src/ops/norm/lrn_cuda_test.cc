// lrn and its gradient on the device against the CPU's results.
#include "ops/test_eval.h"
#include "tests/run_kernels.h"
#include "tests/run_on_device.h"

namespace trireme::ops {
namespace {

using tensor::DType;
using tensor::Tensor;
using testing::as_type;

TEST(LrnCuda, WindowsOfEverySize) {
  for (const int64_t size : {1, 2, 3, 5, 20}) {
    for (const DType type : {DType::f32, DType::f16, DType::bf16}) {
      const ir::Attrs attrs{{"size", size}, {"alpha", 0.5}, {"beta", 0.6}, {"bias", 1.5}};
      const double within = type == DType::f32 ? 1e-5 : 2e-2;
      for (const tensor::Dims& dims : {tensor::Dims{2, 7, 5, 3}, {1, 1, 9}, {3, 6}, {0, 4, 2}}) {
        const Tensor x = as_type(tests::random_tensor(dims, 1), type);
        const Tensor dy = as_type(tests::random_tensor(dims, 2), type);
        tests::expect_as_cpu(
            {.op = "lrn", .in = {x}, .attrs = attrs, .relative = within, .absolute = within});
        tests::expect_as_cpu(
            {.op = "lrn_grad", .in = {dy, x}, .attrs = attrs, .relative = within, .absolute = within});
      }
    }
  }
}

}  // namespace
}  // namespace trireme::ops
