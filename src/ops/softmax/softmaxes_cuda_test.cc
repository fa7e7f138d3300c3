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

TEST(SoftmaxCuda, WhatIsNoNumberSpreadsOverItsRow) {
  using Limits = std::numeric_limits<float>;
  for (const char* op : {"softmax", "log_softmax"}) {
    for (const int64_t n : {7, 64, 20000}) {
      for (const int64_t axis : {0, 1}) {
        const tensor::Dims dims = axis == 1 ? tensor::Dims{4, n} : tensor::Dims{n, 4};
        tensor::Tensor x = tests::random_tensor(dims, 3);
        const auto at = [&](int64_t row, int64_t i) -> float& {
          return x.mutable_data<float>()[static_cast<size_t>(axis == 1 ? row * n + i : i * 4 + row)];
        };
        at(0, 5) = Limits::quiet_NaN();
        at(1, 3) = Limits::infinity();
        at(2, 0) = -Limits::infinity();
        tests::expect_as_cpu({.op = op, .in = {x}, .attrs = {{"axis", axis}}});
      }
    }
  }
}

}  // namespace
}  // namespace trireme::ops
