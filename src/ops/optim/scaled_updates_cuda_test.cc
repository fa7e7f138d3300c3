// LAMB, LARS, Adafactor and Muon on the device against the CPU's results: states bit for bit, parameters
// within the rounding of their norms.
#include "tests/run_on_device.h"

#include "tests/half_tensors.h"

namespace trireme::ops {
namespace {

using tensor::Dims;
using tensor::DType;
using tensor::Tensor;
using tests::random_tensor;

Tensor squared_above_zero(Tensor x) {
  for (float& v : x.mutable_data<float>()) v = v * v + 1e-4f;
  return x;
}

std::vector<Tensor> scalars(bool skip, int64_t step) {
  return {Tensor::scalar(0.01f), Tensor::scalar<int64_t>(step), Tensor::scalar(0.5f), Tensor::scalar(skip)};
}

/// More parameters than one table holds: odd ones, empty ones, one with several blocks of several chunks.
std::vector<Tensor> update_vectors(size_t states, bool second_is_square, bool skip) {
  std::vector<Tensor> in = scalars(skip, 3);
  uint32_t seed = 1;
  for (int64_t i = 0; i < 70; ++i) {
    const Dims dims = i == 3 ? Dims{48, 2001} : i == 5 ? Dims{0} : i == 7 ? Dims{6, 5} : Dims{1 + i % 9};
    for (size_t s = 0; s < states + 2; ++s) {
      const Tensor t = random_tensor(dims, seed++);
      in.push_back(s == states + 1 && second_is_square ? squared_above_zero(t) : t);
    }
  }
  return in;
}

TEST(ScaledUpdatesCuda, Lamb) {
  for (const int64_t adapt : {0, 1}) {
    for (const bool skip : {false, true}) {
      tests::expect_as_cpu({.op = "lamb_update",
                            .in = update_vectors(2, true, skip),
                            .attrs = {{"weight_decay", 0.02}, {"adapt", adapt}, {"lr_scale", 0.5}},
                            .out_count = 210,
                            .relative = 1e-6,
                            .absolute = 1e-7});
    }
  }
  tests::expect_as_cpu({.op = "lamb_update",
                        .in = update_vectors(2, true, false),
                        .attrs = {{"grad_averaging", int64_t{0}}},
                        .out_count = 210,
                        .relative = 1e-6,
                        .absolute = 1e-7});
}

TEST(ScaledUpdatesCuda, Lars) {
  for (const int64_t adapt : {0, 1}) {
    for (const bool skip : {false, true}) {
      tests::expect_as_cpu({.op = "lars_update",
                            .in = update_vectors(1, false, skip),
                            .attrs = {{"weight_decay", 0.02}, {"adapt", adapt}, {"eta", 0.1}},
                            .out_count = 140,
                            .relative = 1e-6,
                            .absolute = 1e-7});
    }
  }
}

/// Two ranks each hold half of the blocks of a parameter [8, 300] and of one [4].
TEST(ScaledUpdatesCuda, SquaresOfRanks) {
  for (const std::string rule : {"lamb", "lars"}) {
    const bool is_lamb = rule == "lamb";
    std::vector<Tensor> in = scalars(false, 2);
    uint32_t seed = 1;
    for (const Dims& dims : {Dims{8, 300}, Dims{4}}) {
      for (size_t s = 0; s < (is_lamb ? 4u : 3u); ++s) {
        const Tensor t = random_tensor(dims, seed++);
        in.push_back(s == 3 ? squared_above_zero(t) : t);
      }
    }
    const std::vector<int64_t> blocks{4, 2};
    tests::expect_as_cpu({.op = "trust_squares",
                          .in = in,
                          .attrs = {{"rule", rule}, {"blocks", blocks}},
                          .relative = 1e-12,
                          .absolute = 0});
    std::vector<double> sums(24);
    for (size_t i = 0; i < sums.size(); ++i) sums[i] = 0.1 + static_cast<double>(i);
    in.push_back(Tensor::from<double>({24}, {sums.begin(), sums.end()}));
    tests::expect_as_cpu({.op = rule + "_update",
                          .in = in,
                          .attrs = {{"blocks", blocks}, {"parts", int64_t{2}}},
                          .out_count = is_lamb ? 6u : 4u,
                          .relative = 1e-6,
                          .absolute = 1e-7});
  }
}

/// Wide, narrow, several parts of rows, several matrices, none.
std::vector<Tensor> update_matrices(bool skip) {
  std::vector<Tensor> in = scalars(skip, 4);
  uint32_t seed = 1;
  std::vector<Dims> shapes{{7, 5}, {300, 33}, {3, 400}, {4, 6, 3, 3}, {1, 1}, {0, 4}, {3, 0}, {260, 2}};
  for (int64_t i = 0; i < 30; ++i) shapes.push_back({2, 3 + i});
  for (const Dims& dims : shapes) {
    Dims row = dims, col = dims;
    row.back() = 1;
    col[col.size() - 2] = 1;
    in.push_back(random_tensor(dims, seed++));
    in.push_back(random_tensor(dims, seed++));
    in.push_back(squared_above_zero(random_tensor(row, seed++)));
    in.push_back(squared_above_zero(random_tensor(col, seed++)));
  }
  return in;
}

TEST(ScaledUpdatesCuda, Adafactor) {
  for (const bool skip : {false, true}) {
    const std::vector<Tensor> in = update_matrices(skip);
    tests::expect_as_cpu({.op = "adafactor_update",
                          .in = in,
                          .attrs = {{"weight_decay", 0.1}, {"clip_threshold", 0.8}},
                          .out_count = (in.size() - 4) / 4 * 3,
                          .relative = 2e-6,
                          .absolute = 1e-7});
    std::vector<Tensor> one = update_vectors(1, false, skip);
    for (size_t i = 6; i < one.size(); i += 3) one[i] = squared_above_zero(one[i]);
    tests::expect_as_cpu({.op = "adafactor_vector_update",
                          .in = one,
                          .attrs = {{"weight_decay", 0.1}},
                          .out_count = 140,
                          .relative = 2e-6,
                          .absolute = 1e-7});
  }
}

std::vector<Tensor> squares(bool skip) {
  std::vector<Tensor> in = scalars(skip, 4);
  uint32_t seed = 1;
  for (const Dims& dims : {Dims{12, 7}, Dims{7, 12}, Dims{12, 7}, Dims{1, 5}, Dims{0, 5}, Dims{130, 70}}) {
    for (int i = 0; i < 3; ++i) in.push_back(random_tensor(dims, seed++));
  }
  return in;
}

TEST(ScaledUpdatesCuda, Muon) {
  for (const bool skip : {false, true}) {
    for (const char* adjust : {"original", "match_rms_adamw"}) {
      tests::expect_as_cpu({.op = "muon_update",
                            .in = squares(skip),
                            .attrs = {{"adjust", adjust}, {"nesterov", int64_t{skip}}},
                            .out_count = 12,
                            .relative = 2e-5,
                            .absolute = 2e-6});
    }
  }
  // Sums in another order may round to the other neighbour in bf16, and five iterations amplify this.
  tests::expect_as_cpu({.op = "muon_update",
                        .in = squares(false),
                        .attrs = {{"iterate", "bf16"}},
                        .out_count = 12,
                        .relative = 1e-3,
                        .absolute = 3e-4});
}

}  // namespace
}  // namespace trireme::ops
