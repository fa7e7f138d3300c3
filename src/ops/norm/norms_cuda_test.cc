// Norms and their gradients on the device against the CPU's results.
#include "tests/half_tensors.h"
#include "tests/run_on_device.h"

namespace trireme::ops {
namespace {

using tensor::Dims;
using tensor::DType;
using tensor::Tensor;
using tests::random_tensor;

class NormsCuda : public ::testing::TestWithParam<DType> {
 protected:
  Tensor random(const Dims& dims, uint32_t seed, float scale = 1) const {
    return tests::rounded_to(GetParam(), random_tensor(dims, seed, scale));
  }
  size_t expect_as_cpu(tests::DeviceTrial trial, bool may_refuse = false) const {
    trial.relative = trial.absolute = 2 * tests::half_tolerance(GetParam());
    return tests::expect_as_cpu(trial, may_refuse);
  }
};
INSTANTIATE_TEST_SUITE_P(Types, NormsCuda, ::testing::Values(DType::f32, DType::f16, DType::bf16),
                         [](const auto& at) { return std::string(name_of(at.param)); });

TEST_P(NormsCuda, RowsOfAllLengths) {
  // Rows that fit the registers of one warp or of several, odd ones, and rows that do not fit.
  for (const int64_t n : {1, 7, 64, 333, 1032, 4097, 16384, 16392}) {
    expect_as_cpu({.op = "layer_norm",
                   .in = {random({2, 3, n}, 1, 3), random({n}, 2), random({n}, 3)},
                   .out_count = 3});
    expect_as_cpu({.op = "layer_norm", .in = {random({5, n}, 1, 3), random({n}, 2)}});
    expect_as_cpu({.op = "rms_norm", .in = {random({5, n}, 1, 3), random({n}, 2)}});
  }
  expect_as_cpu({.op = "layer_norm",
                 .in = {random({2, 4, 6}, 1), random({4, 6}, 2), random({4, 6}, 3)},
                 .attrs = {{"axis", int64_t{1}}, {"epsilon", 0.1}}});
}

TEST_P(NormsCuda, ABroadcastScaleIsRefused) {
  EXPECT_EQ(
      expect_as_cpu(
          {.op = "layer_norm", .in = {random({2, 4, 6}, 1), random({6}, 2)}, .attrs = {{"axis", int64_t{1}}}},
          /*may_refuse=*/true),
      0u);
}

TEST_P(NormsCuda, GradientsOfRowNorms) {
  // 700 rows: column sums in several pieces; 4104 columns: more than registers hold.
  for (const auto& [rows, n] : std::vector<std::array<int64_t, 2>>{
           {1, 1}, {5, 7}, {9, 64}, {700, 24}, {700, 25}, {3, 1032}, {2, 4096}, {2, 4104}}) {
    for (const char* op : {"layer_norm_grad", "rms_norm_grad"}) {
      const size_t results = op[0] == 'l' ? 3 : 2;
      const Tensor dy = random({rows, n}, 1), x = random({rows, n}, 2, 2);
      expect_as_cpu({.op = op, .in = {dy, x, random({n}, 3), random({rows, n}, 4)}, .out_count = results});
      expect_as_cpu({.op = op, .in = {dy, x}, .out_count = results});
      expect_as_cpu({.op = op, .in = {dy, x, random({n}, 3)}, .out_count = 1});
    }
  }
}

/// The types to which a norm of f32 rows can round its result.
class RoundedNormsCuda : public NormsCuda {};
INSTANTIATE_TEST_SUITE_P(Types, RoundedNormsCuda, ::testing::Values(DType::f16, DType::bf16),
                         [](const auto& at) { return std::string(name_of(at.param)); });

TEST_P(RoundedNormsCuda, RowsInF32BesideSixteenBits) {
  const ir::Attrs rounded{{"rounded", std::string(name_of(GetParam()))}};
  for (const auto& [rows, n] :
       std::vector<std::array<int64_t, 2>>{{1, 1}, {3, 7}, {9, 64}, {700, 24}, {2, 1028}}) {
    const Tensor x = random_tensor({rows, n}, 2, 2), scale = random_tensor({n}, 3),
                 bias = random_tensor({n}, 5);
    const Tensor add = random_tensor({rows, n}, 4), dy = random({rows, n}, 1);
    expect_as_cpu({.op = "layer_norm", .in = {x, scale, bias}, .attrs = rounded, .out_count = 4});
    expect_as_cpu({.op = "rms_norm", .in = {x, scale}, .attrs = rounded, .out_count = 2});
    for (const char* op : {"layer_norm_grad", "rms_norm_grad"}) {
      const size_t results = op[0] == 'l' ? 3 : 2;
      expect_as_cpu({.op = op, .in = {dy, x, scale, add}, .attrs = rounded, .out_count = results + 1});
      expect_as_cpu({.op = op, .in = {dy, x, scale}, .out_count = results});
      expect_as_cpu(
          {.op = op, .in = {random_tensor({rows, n}, 1), x}, .attrs = rounded, .out_count = results + 1});
    }
  }
}

TEST(NormsCudaTypes, OtherMixturesAreRefused) {
  const Tensor x = random_tensor({4, 8}, 1), scale = random_tensor({8}, 2);
  const Tensor low = tests::rounded_to(DType::f16, x);
  const ir::Attrs rounded{{"rounded", std::string("bf16")}};
  tests::expect_as_cpu(
      {.op = "rms_norm", .in = {low, scale}, .attrs = rounded, .out_count = 2, .kernels = 0});
  tests::expect_as_cpu(
      {.op = "rms_norm_grad", .in = {low, x, scale}, .attrs = rounded, .out_count = 3, .kernels = 0});
  base::ThreadPool pool(1);
  const std::vector<Tensor> y =
      evaluate(table().need("rms_norm"), {{"rounded", std::string("bf16")}}, {low, scale}, 2, pool);
  const std::vector<double> first = y[0].to_doubles(), second = y[1].to_doubles();
  for (size_t i = 0; i < first.size(); ++i)
    EXPECT_EQ(second[i], static_cast<float>(tensor::BFloat16(static_cast<float>(first[i]))));
  EXPECT_THROW(evaluate(table().need("rms_norm"), {{"rounded", std::string("f8")}}, {x, scale}, 2, pool),
               base::Error);
}

TEST_P(NormsCuda, GroupsAndInstances) {
  for (const Dims& x : {Dims{2, 6, 5, 7}, {1, 4, 16}, {3, 2, 1}, {2, 8, 8, 8}}) {
    const Tensor scale = random({x[1]}, 2), bias = random({x[1]}, 3);
    expect_as_cpu({.op = "instance_norm", .in = {random(x, 1, 2), scale, bias}});
    expect_as_cpu(
        {.op = "group_norm", .in = {random(x, 1, 2), scale, bias}, .attrs = {{"num_groups", int64_t{2}}}});
  }
}

/// Positive values.
Tensor variances(DType type, int64_t n) {
  Tensor v = random_tensor({n}, 9);
  for (float& x : v.mutable_data<float>()) x = 0.5f + x * x;
  return tests::rounded_to(type, v);
}

TEST_P(NormsCuda, BatchNormByGivenStatistics) {
  for (const Dims& x : {Dims{2, 6, 5, 7}, {3, 5}, {2, 4, 16}}) {
    expect_as_cpu({.op = "batch_norm",
                   .in = {random(x, 1, 2), random({x[1]}, 2), random({x[1]}, 3), random({x[1]}, 4),
                          variances(GetParam(), x[1])}});
  }
}

// The CPU's training kernels take one type for all operands.
TEST(NormsCuda, BatchNormByTheBatch) {
  for (const int64_t axis : {1, -1}) {
    for (const Dims& x : {Dims{2, 6, 5, 7}, {3, 5, 4, 8}, {40, 3, 8, 64}, {1, 2, 1, 1}, {900, 3}}) {
      const int64_t c = x[axis < 0 ? x.size() - 1 : 1];
      for (const char* act : {"none", "relu"}) {
        const ir::Attrs attrs{{"axis", axis}, {"activation", std::string(act)}};
        std::vector<Tensor> in{random_tensor(x, 1, 2), random_tensor({c}, 2), random_tensor({c}, 3)};
        in[0].mutable_data<float>()[0] += 30;  // a centre far from the mean
        tests::DeviceTrial trial{.op = "batch_norm_train", .in = in, .attrs = attrs, .out_count = 4};
        trial.relative = trial.absolute = 1e-4;
        tests::expect_as_cpu(trial);
        trial.in.push_back(random_tensor(x, 4));
        tests::expect_as_cpu(trial);
      }
    }
  }
}

TEST(NormsCuda, GradientsOfBatchNorm) {
  for (const int64_t axis : {1, -1}) {
    for (const Dims& x : {Dims{2, 6, 5, 7}, {3, 5, 4, 8}, {40, 3, 8, 64}, {900, 3}}) {
      const int64_t c = x[axis < 0 ? x.size() - 1 : 1];
      std::vector<Tensor> in{random_tensor(x, 1), random_tensor(x, 2)};
      for (uint32_t i = 3; i < 6; ++i) in.push_back(random_tensor({c}, i));
      in.push_back(variances(DType::f32, c));
      for (const char* act : {"none", "relu"}) {
        tests::DeviceTrial trial{.op = "batch_norm_grad",
                                 .in = in,
                                 .attrs = {{"axis", axis}, {"activation", std::string(act)}},
                                 .out_count = 3};
        trial.relative = trial.absolute = 1e-4;
        tests::expect_as_cpu(trial);
        trial.in.push_back(random_tensor(x, 7));
        trial.in.push_back(random_tensor(x, 8));
        trial.out_count = 4;
        tests::expect_as_cpu(trial);
      }
    }
  }
}

}  // namespace
}  // namespace trireme::ops
