// matmul, gemm, matmul_integer, linear: every kernel against naive double loops.
#include <array>

#include "tests/run_kernels.h"

namespace trireme::ops {
namespace {

using tensor::Dims;
using tensor::Tensor;
using tests::random_tensor;

/// Appends to y the product of a [m, k] and b [k, n], each read from its offset.
void append_naive_product(const std::vector<double>& a, const std::vector<double>& b,
                          std::array<size_t, 2> at, std::array<int64_t, 3> mkn, std::vector<double>& y) {
  const auto [a_at, b_at] = at;
  const auto [m, k, n] = mkn;
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      double sum = 0;
      for (int64_t l = 0; l < k; ++l) sum += a[a_at + size_t(i * k + l)] * b[b_at + size_t(l * n + j)];
      y.push_back(sum);
    }
  }
}

TEST(Matmul, PackedBatchedAndReferenceAgreeWithNaiveLoops) {
  for (const auto& mkn :
       std::vector<std::array<int64_t, 3>>{{1, 1, 1}, {7, 33, 65}, {64, 48, 16}, {3, 257, 5}}) {
    const auto [m, k, n] = mkn;
    const Tensor a = random_tensor({m, k}, 1), b = random_tensor({k, n}, 2);
    std::vector<double> want;
    append_naive_product(a.to_doubles(), b.to_doubles(), {0, 0}, mkn, want);
    const auto results = tests::run_kernels("matmul", {}, {a, b}, 1, {0});
    ASSERT_EQ(results.size(), 3u);
    for (const auto& r : results) tests::expect_close(r.out[0], want, 1e-5, 1e-4, r.kernel);
  }
}

TEST(Matmul, BatchesBroadcastOnBothSides) {
  const Tensor a = random_tensor({2, 1, 3, 4, 5}, 1), b = random_tensor({3, 5, 6}, 2);
  const auto av = a.to_doubles(), bv = b.to_doubles();
  std::vector<double> want;
  for (size_t i = 0; i < 6; ++i) append_naive_product(av, bv, {i * 20, i % 3 * 30}, {4, 5, 6}, want);
  const auto results = tests::run_kernels("matmul", {}, {a, b}, 1, {0, 1});
  ASSERT_GE(results.size(), 2u);
  for (const auto& r : results) tests::expect_close(r.out[0], want, 1e-5, 1e-5, r.kernel);
}

TEST(Matmul, ResultsDoNotDependOnTheTeam) {
  const Tensor a = random_tensor({65, 300}, 1), b = random_tensor({300, 130}, 2);
  const auto one = tests::run_kernels("matmul", {}, {a, b}, 1, {0}, 1),
             four = tests::run_kernels("matmul", {}, {a, b}, 1, {0}, 4);
  for (size_t i = 0; i < one.size(); ++i) EXPECT_TRUE(one[i].out[0].same_as(four[i].out[0])) << one[i].kernel;
}

TEST(Matmul, RowsDoNotDependOnTheirBatchMates) {
  const Tensor a = random_tensor({9, 70}, 1), b = random_tensor({70, 40}, 2);
  const auto all = tests::run_kernels("matmul", {}, {a, b}, 1, {0});
  for (int64_t row = 0; row < 9; ++row) {
    const auto single = tests::run_kernels("matmul", {}, {a.rows(row, row + 1).clone(), b}, 1, {0});
    for (size_t i = 0; i < all.size(); ++i)
      EXPECT_TRUE(single[i].out[0].same_as(all[i].out[0].rows(row, row + 1))) << all[i].kernel;
  }
}

TEST(Matmul, EmptyExtentsGiveEmptyOrZeroResults) {
  EXPECT_EQ(tests::run_kernels("matmul", {},
                               {Tensor::zeros(tensor::DType::f32, {0, 3}), random_tensor({3, 2}, 1)})[0]
                .out[0]
                .elements(),
            0);
  const auto r = tests::run_kernels(
      "matmul", {}, {Tensor::zeros(tensor::DType::f32, {2, 0}), Tensor::zeros(tensor::DType::f32, {0, 2})});
  tests::expect_close(r.at(0).out[0], {0, 0, 0, 0}, 0, 0, "k = 0");
}

TEST(Gemm, TransposesScalesAndBroadcastsC) {
  const Tensor a = random_tensor({6, 4}, 1), b = random_tensor({5, 6}, 2), c = random_tensor({4, 1}, 3);
  const auto av = a.to_doubles(), bv = b.to_doubles(), cv = c.to_doubles();
  std::vector<double> want;
  for (size_t i = 0; i < 4; ++i) {
    for (size_t j = 0; j < 5; ++j) {
      double sum = 0;
      for (size_t l = 0; l < 6; ++l) sum += av[l * 4 + i] * bv[j * 6 + l];
      want.push_back(0.5 * sum + 2 * cv[i]);
    }
  }
  const ir::Attrs attrs{{"alpha", 0.5}, {"beta", 2.0}, {"transA", int64_t{1}}, {"transB", int64_t{1}}};
  for (const auto& r : tests::run_kernels("gemm", attrs, {a, b, c}))
    tests::expect_close(r.out[0], want, 1e-5, 1e-6, r.kernel);
}

double act(const std::string& name, double x) {
  if (name == "relu") return std::max(x, 0.0);
  if (name == "gelu_erf") return x / 2 * std::erfc(-x / std::sqrt(2.0));
  if (name == "silu") return x / (1 + std::exp(-x));
  if (name == "clip") return std::min(std::max(x, -0.5), 1.5);
  return name == "tanh" ? std::tanh(x) : x;
}

TEST(Linear, EveryKernelAndTheExpansionApplyTheEpilogue) {
  for (const std::string name : {"none", "relu", "clip", "gelu_erf", "silu", "tanh"}) {
    for (const bool before : {false, true}) {
      const Tensor x = random_tensor({3, 5, 17}, 1), w = random_tensor({40, 17}, 2, 0.3f),
                   bias = random_tensor({40}, 3);
      const Tensor residual = random_tensor({3, 5, 40}, 4);
      std::vector<double> want;
      for (size_t i = 0; i < 15; ++i) {
        for (size_t j = 0; j < 40; ++j) {
          double sum = bias.to_doubles()[j];
          for (size_t l = 0; l < 17; ++l)
            sum += double(x.data<float>()[i * 17 + l]) * double(w.data<float>()[j * 17 + l]);
          const double r = double(residual.data<float>()[i * 40 + j]);
          want.push_back(before ? act(name, sum) + r : act(name, sum + r));
        }
      }
      const ir::Attrs attrs{{"activation", name},
                            {"lo", -0.5},
                            {"hi", 1.5},
                            {"transposed", int64_t{1}},
                            {"act_before_residual", int64_t{before}}};
      const auto results = tests::run_kernels("linear", attrs, {x, w, bias, residual}, 1, {0, 3});
      ASSERT_EQ(results.size(), 3u);
      for (const auto& r : results) tests::expect_close(r.out[0], want, 1e-5, 1e-5, r.kernel + " " + name);
      tests::expect_close(tests::run_expanded("linear", attrs, {x, w, bias, residual})[0], want, 1e-5, 1e-5,
                          "expand " + name);
    }
  }
}

TEST(Linear, TheArgumentOfItsActivationIsASecondResult) {
  const Tensor x = random_tensor({3, 17}, 1), w = random_tensor({17, 9}, 2, 0.3f),
               bias = random_tensor({9}, 3), residual = random_tensor({3, 9}, 4);
  const std::vector<double> plain = tests::run_expanded("linear", {}, {x, w, bias})[0].to_doubles();
  for (const std::string name : {"none", "relu", "gelu_erf", "silu", "tanh"}) {
    for (const bool before : {false, true}) {
      const ir::Attrs attrs{{"activation", name}, {"act_before_residual", int64_t{before}}};
      std::vector<double> want[2];
      for (size_t i = 0; i < plain.size(); ++i) {
        const double r = double(residual.data<float>()[i]), z = before ? plain[i] : plain[i] + r;
        want[0].push_back(before ? act(name, z) + r : act(name, z));
        want[1].push_back(z);
      }
      auto results = tests::run_kernels("linear", attrs, {x, w, bias, residual}, 2);
      ASSERT_EQ(results.size(), 1u);
      results.push_back({"expand", tests::run_expanded("linear", attrs, {x, w, bias, residual}, 2)});
      for (const auto& r : results) {
        for (size_t i : {size_t{0}, size_t{1}})
          tests::expect_close(r.out[i], want[i], 1e-5, 1e-5, r.kernel + " " + name);
      }
    }
  }
}

TEST(Linear, AGradientTimesTheSlopeIsThatOfTheExpansion) {
  const Tensor dy = random_tensor({6, 11}, 1), w = random_tensor({7, 11}, 2), z = random_tensor({6, 7}, 3);
  for (const std::string name : {"relu", "clip", "sigmoid", "silu", "hardswish", "hardsigmoid", "gelu_erf",
                                 "gelu_tanh", "tanh", "leaky"}) {
    const ir::Attrs attrs{{"activation", name}, {"lo", -0.5}, {"hi", 1.5}};
    const auto results = tests::run_kernels("linear_grad_x", attrs, {dy, w, z});
    ASSERT_EQ(results.size(), 1u);
    const auto want = tests::run_expanded("linear_grad_x", attrs, {dy, w, z})[0].to_doubles();
    tests::expect_close(results[0].out[0], want, 1e-5, 1e-5, name);
  }
  EXPECT_THROW(tests::run_kernels("linear_grad_x", {}, {dy, w, z}), base::Error);
  EXPECT_THROW(tests::run_kernels("linear_grad_x", {{"activation", std::string("tanh")}}, {dy, w}),
               base::Error);
}

TEST(Linear, KernelsOfItsGradientsMatchTheExpansion) {
  for (const bool transposed : {false, true}) {
    for (const auto& [m, k, n] :
         {std::array<int64_t, 3>{1, 1, 1}, {70, 33, 17}, {9, 600, 45}, {1100, 20, 40}}) {
      const ir::Attrs attrs{{"transposed", int64_t{transposed}}};
      const Tensor x = random_tensor({m, k}, 1), dy = random_tensor({m, n}, 2);
      const Tensor w = random_tensor(transposed ? tensor::Dims{n, k} : tensor::Dims{k, n}, 3);
      const auto dx = tests::run_expanded("linear_grad_x", attrs, {dy, w})[0].to_doubles();
      const auto by_x = tests::run_kernels("linear_grad_x", attrs, {dy, w});
      ASSERT_EQ(by_x.size(), 2u);
      for (const auto& r : by_x) tests::expect_close(r.out[0], dx, 1e-4, 1e-4, r.kernel);
      const auto want = tests::run_expanded("linear_grad_w", attrs, {x, dy}, 2);
      const auto by_w = tests::run_kernels("linear_grad_w", attrs, {x, dy}, 2);
      ASSERT_EQ(by_w.size(), 2u);
      for (const auto& r : by_w) {
        tests::expect_close(r.out[0], want[0].to_doubles(), 1e-4, 1e-4, r.kernel + " dw");
        tests::expect_close(r.out[1], want[1].to_doubles(), 1e-4, 1e-4, r.kernel + " dbias");
      }
    }
  }
}

/// A bf16 tensor of reproducible values.
Tensor bf16(tensor::Dims dims, unsigned seed) {
  const Tensor wide = random_tensor(dims, seed);
  Tensor t = Tensor::empty(tensor::DType::bf16, dims);
  const auto to = t.mutable_data<tensor::BFloat16>();
  for (size_t i = 0; i < to.size(); ++i) to[i] = tensor::BFloat16(wide.data<float>()[i]);
  return t;
}

TEST(Linear, HalfPrecisionRoundsOnceAfterExactSums) {
  for (const bool transposed : {false, true}) {
    const ir::Attrs attrs{{"transposed", int64_t{transposed}}, {"activation", std::string("silu")}};
    const ir::Attrs plain{{"transposed", int64_t{transposed}}};
    const Tensor x = bf16({37, 71}, 1), w = bf16(transposed ? tensor::Dims{45, 71} : tensor::Dims{71, 45}, 2);
    const Tensor bias = bf16({45}, 3), residual = bf16({37, 45}, 4), dy = bf16({37, 45}, 5);
    const std::vector<std::tuple<std::string, ir::Attrs, std::vector<Tensor>, size_t>> calls{
        {"linear", attrs, {x, w, bias, residual}, 1},
        {"linear_grad_x", plain, {dy, w}, 1},
        {"linear_grad_w", plain, {x, dy}, 2}};
    for (const auto& [op, op_attrs, in, outs] : calls) {
      std::vector<Tensor> wide;
      for (const Tensor& t : in) {
        Tensor f = Tensor::empty(tensor::DType::f32, t.dims());
        const auto values = t.to_doubles();
        for (size_t i = 0; i < values.size(); ++i) f.mutable_data<float>()[i] = static_cast<float>(values[i]);
        wide.push_back(f);
      }
      const auto want = tests::run_kernels(op, op_attrs, wide, outs);
      const auto results = tests::run_kernels(op, op_attrs, in, outs);
      ASSERT_GE(results.size(), 2u);
      for (const auto& r : results) {
        for (size_t i = 0; i < outs; ++i)
          tests::expect_close(r.out[i], want.back().out[i].to_doubles(), 1.0 / 200, 1e-4,
                              op + " " + r.kernel);
      }
    }
  }
}

TEST(BatchedGemm, KernelsMatchTheExpansionInEveryOrientation) {
  for (const int form : {0, 1, 2, 3}) {
    const bool ta = form & 1, tb = form & 2;
    const ir::Attrs attrs{{"transA", int64_t{ta}}, {"transB", int64_t{tb}}};
    const Tensor a = random_tensor(ta ? tensor::Dims{2, 3, 20, 17} : tensor::Dims{2, 3, 17, 20}, 1),
                 b = random_tensor(tb ? tensor::Dims{3, 40, 20} : tensor::Dims{3, 20, 40}, 2);
    const auto want = tests::run_expanded("batched_gemm", attrs, {a, b})[0].to_doubles();
    const auto results = tests::run_kernels("batched_gemm", attrs, {a, b});
    ASSERT_EQ(results.size(), 2u);
    for (const auto& r : results) tests::expect_close(r.out[0], want, 1e-5, 1e-5, r.kernel);
  }
}

/// Zero points that are computed, weights that are constant or not, batches, and odd extents.
TEST(MatmulInteger, PackedSumsAreExact) {
  using tests::random_bytes;
  const std::vector<std::vector<size_t>> fed = {{0, 2}, {0, 1, 2}, {0, 1, 2, 3}};
  for (int64_t n : {1, 7, 64, 100}) {
    const Tensor u8 = random_bytes<uint8_t>({2, 3, 37}, 1, 0, 255),
                 i8 = random_bytes<int8_t>({5, 37}, 1, -128, 127);
    const std::vector<std::vector<Tensor>> cases = {
        {u8, random_bytes<int8_t>({37, n}, 2, -128, 127), Tensor::scalar<uint8_t>(131),
         random_bytes<int8_t>({n}, 5, -3, 3)},
        {i8, random_bytes<uint8_t>({37, n}, 2, 0, 255), Tensor::scalar<int8_t>(-7),
         random_bytes<uint8_t>({1}, 5, 0, 255)},
        {u8, random_bytes<uint8_t>({2, 37, n}, 2, 0, 255), Tensor::scalar<uint8_t>(255),
         Tensor::scalar<uint8_t>(9)},
        {i8, random_bytes<int8_t>({37, n}, 2, -128, 127)}};
    for (const auto& operands : cases) {
      for (std::vector<size_t> computed : fed) {
        std::erase_if(computed, [&](size_t i) { return i >= operands.size(); });
        const auto results = tests::run_kernels("matmul_integer", {}, operands, 1, computed);
        ASSERT_EQ(results.size(), 2u) << "a kernel refuses";
        EXPECT_EQ(results[0].out[0].to_ints(), results[1].out[0].to_ints())
            << results[0].kernel << " n=" << n;
      }
    }
  }
}

TEST(MatmulInteger, SubtractsZeroPointsPerRowAndColumn) {
  const Tensor a = Tensor::from<uint8_t>({2, 3}, {1, 2, 3, 250, 0, 7}),
               b = Tensor::from<int8_t>({3, 2}, {-1, 4, 5, -6, 7, 8});
  const Tensor az = Tensor::from<uint8_t>({2}, {1, 3}), bz = Tensor::from<int8_t>({2}, {2, -1});
  std::vector<double> want;
  for (size_t i = 0; i < 2; ++i) {
    for (size_t j = 0; j < 2; ++j) {
      double sum = 0;
      for (size_t l = 0; l < 3; ++l) {
        sum += (a.to_doubles()[i * 3 + l] - az.to_doubles()[i]) *
               (b.to_doubles()[l * 2 + j] - bz.to_doubles()[j]);
      }
      want.push_back(sum);
    }
  }
  for (const auto& r : tests::run_kernels("matmul_integer", {}, {a, b, az, bz}))
    tests::expect_close(r.out[0], want, 0, 0, r.kernel);
}

TEST(MatmulInteger, ZeroPointsOfColumnsFitAnyRank) {
  const auto type_of = [](const tensor::Shape& b, size_t points) {
    ir::Graph g;
    const ir::ValueId a = g.add_input("a", {tensor::DType::u8, tensor::Shape::unknown_rank()}),
                      w = g.add_input("b", {tensor::DType::i8, b});
    const ir::ValueId z = g.add_constant(Tensor::zeros(tensor::DType::i8, {static_cast<int64_t>(points)}));
    return g.type(g.add1(table().need("matmul_integer"), {a, w, ir::kNoValue, z})).to_string();
  };
  EXPECT_EQ(type_of(tensor::Shape::unknown_rank(), 9), "i32[*]");
  EXPECT_EQ(type_of({33, 9}, 9), "i32[*]");
  EXPECT_THROW(type_of({33, 8}, 9), base::Error);
  EXPECT_THROW(type_of({33}, 9), base::Error);
}

}  // namespace
}  // namespace trireme::ops
