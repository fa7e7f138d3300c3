// Updates, averages, norms and clipping on the device against the CPU's results, bit for bit if both round
// alike.
#include "tests/half_tensors.h"
#include "tests/run_on_device.h"

namespace trireme::ops {
namespace {

using tensor::Dims;
using tensor::DType;
using tensor::Tensor;
using tests::random_tensor;

void expect_same_bits(tests::DeviceTrial trial) {
  trial.relative = trial.absolute = 0;
  tests::expect_as_cpu(trial);
}

Tensor squared(Tensor x) {
  for (float& v : x.mutable_data<float>()) v *= v;
  return x;
}

/// Scalars and groups of an update: odd sizes, one or several chunks, more tensors than one table holds.
std::vector<Tensor> operands(size_t states, bool skip, int64_t step) {
  std::vector<Tensor> in{Tensor::scalar(0.01f), Tensor::scalar<int64_t>(step), Tensor::scalar(0.5f),
                         Tensor::scalar(skip)};
  uint32_t seed = 1;
  for (int64_t i = 0; i < 70; ++i) {
    const int64_t n = i == 3 ? 20001 : i == 5 ? 0 : 1 + i % 9;
    in.push_back(random_tensor({n}, seed++));
    in.push_back(random_tensor({n}, seed++));
    if (states > 0) in.push_back(random_tensor({n}, seed++));
    if (states > 1) in.push_back(squared(random_tensor({n}, seed++)));
  }
  return in;
}

TEST(OptimizersCuda, PlainDescentAndMomentum) {
  for (const bool skip : {false, true}) {
    expect_same_bits(
        {.op = "sgd_update", .in = operands(0, skip, 3), .attrs = {{"weight_decay", 0.1}}, .out_count = 70});
    for (const int64_t nesterov : {0, 1}) {
      expect_same_bits(
          {.op = "momentum_update",
           .in = operands(1, skip, 1 + nesterov),
           .attrs = {{"momentum", 0.9}, {"dampening", 0.1}, {"nesterov", nesterov}, {"lr_scale", 0.5}},
           .out_count = 140});
    }
  }
}

TEST(OptimizersCuda, Adam) {
  for (const int64_t decoupled : {0, 1}) {
    for (const bool skip : {false, true}) {
      expect_same_bits({.op = "adam_update",
                        .in = operands(2, skip, 7),
                        .attrs = {{"weight_decay", 0.02}, {"decoupled", decoupled}},
                        .out_count = 210});
    }
  }
  std::vector<Tensor> in = operands(2, false, 1);
  in[2] = in[3] = Tensor();
  expect_same_bits({.op = "adam_update", .in = in, .out_count = 210});
}

TEST(OptimizersCuda, Averages) {
  std::vector<Tensor> in{Tensor::scalar<int64_t>(4), Tensor::scalar(false)};
  for (uint32_t i = 0; i < 6; ++i) in.push_back(random_tensor({11 + i / 2 * 5000}, i));
  for (const int64_t ramp : {0, 1})
    expect_same_bits({.op = "ema_weights", .in = in, .attrs = {{"ramp", ramp}}, .out_count = 3});
  expect_same_bits({.op = "ema_update", .in = {random_tensor({3, 7}, 1), random_tensor({3, 7}, 2)}});
  expect_same_bits(
      {.op = "ema_update", .in = {random_tensor({3, 7}, 1), random_tensor({3, 7}, 2), Tensor::scalar(true)}});
}

TEST(OptimizersCuda, TreesOfSums) {
  for (const int64_t count : {0, 1, 2, 3, 5, 7}) {
    std::vector<Tensor> in{Tensor::scalar<int64_t>(count)};
    for (uint32_t i = 0; i < 5; ++i) in.push_back(random_tensor({1003}, i));
    expect_same_bits({.op = "tree_accumulate", .in = in, .out_count = 4});
  }
}

TEST(OptimizersCuda, FiniteOrNot) {
  for (const float bad : {1.0f, INFINITY, NAN}) {
    std::vector<Tensor> in;
    for (uint32_t i = 0; i < 67; ++i) in.push_back(random_tensor({1 + i * 300}, i));
    in[66].mutable_data<float>()[19000] = bad;
    expect_same_bits({.op = "all_finite", .in = in});
  }
}

TEST(OptimizersCuda, NormsOfBlocks) {
  const std::vector<Tensor> in{random_tensor({6, 5000}, 1), random_tensor({3, 4, 7}, 2),
                               random_tensor({}, 3)};
  tests::DeviceTrial trial{
      .op = "block_squares",
      .in = in,
      .attrs = {{"dims", std::vector<int64_t>{0, 1, 0}}, {"blocks", std::vector<int64_t>{2, 4, 1}}}};
  trial.relative = trial.absolute = 1e-12;
  tests::expect_as_cpu(trial);
  std::vector<double> squares(20);
  for (size_t i = 0; i < 20; ++i) squares[i] = 0.1 * static_cast<double>(i * i);
  for (const int64_t root : {0, 1}) {
    tests::expect_as_cpu({.op = "norm_of_squares",
                          .in = {Tensor::from<double>({14}, {squares.begin(), squares.begin() + 14}),
                                 Tensor::from<double>({6}, {squares.begin() + 14, squares.end()})},
                          .attrs = {{"parts", std::vector<int64_t>{2, 1}},
                                    {"counts", std::vector<int64_t>{4, 3, 6}},
                                    {"operands", std::vector<int64_t>{0, 0, 1}},
                                    {"root", root}}});
  }
}

TEST(OptimizersCuda, Clipping) {
  const Tensor norm = Tensor::scalar(3.0f), scale = Tensor::scalar(0.5f);
  expect_same_bits({.op = "clip_coefficient", .in = {norm}, .attrs = {{"max_norm", 1.0}}, .out_count = 3});
  expect_same_bits(
      {.op = "clip_coefficient", .in = {norm, scale}, .attrs = {{"max_norm", 7.0}}, .out_count = 3});
  expect_same_bits({.op = "clip_coefficient",
                    .in = {norm, Tensor(), Tensor::scalar(2.0f), Tensor::scalar(1.0f), Tensor::scalar(5.0f)},
                    .out_count = 3});
  expect_same_bits(
      {.op = "clip_coefficient", .in = {Tensor::scalar(NAN)}, .attrs = {{"max_norm", 1.0}}, .out_count = 2});
}

}  // namespace
}  // namespace trireme::ops
