// Softmax, its logarithm and their gradients on the device against the CPU's results.
#include "tests/half_tensors.h"
#include "tests/run_on_device.h"

namespace trireme::ops {
namespace {

using tensor::DType;

TEST(SoftmaxCuda, RowsOfAllLengths) {
  for (const char* op : {"softmax", "log_softmax"}) {
    for (const int64_t n : {1, 7, 8, 31, 32, 100, 1000, 1028, 4097, 8200, 16392}) {
      tests::expect_as_cpu({.op = op, .in = {tests::random_tensor({3, 5, n}, uint32_t(n), 4.0f)}});
    }
  }
}

TEST(SoftmaxCuda, OtherAxesAndTypes) {
  for (const DType type : {DType::f32, DType::f16, DType::bf16}) {
    for (const int64_t axis : {0, 1, 2, 3}) {
      const tensor::Tensor x = tests::rounded_to(type, tests::random_tensor({2, 3, 5, 8}, 1)),
                           dy = tests::rounded_to(type, tests::random_tensor({2, 3, 5, 8}, 2));
      for (const char* op : {"softmax", "log_softmax"}) {
        tests::DeviceTrial trial{.op = op, .in = {x}, .attrs = {{"axis", axis}}};
        trial.relative = trial.absolute = tests::half_tolerance(type);
        tests::expect_as_cpu(trial);
        trial.op += "_grad";
        trial.in = {dy, x};
        tests::expect_as_cpu(trial);
      }
    }
  }
}

}  // namespace
}  // namespace trireme::ops
