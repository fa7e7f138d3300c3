// gemm_blocks against double loops in every orientation, batched, with its sums and epilogue, at every level.
#include "backend/cpu/dense/gemm_blocks.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "backend/cpu/dense/random_floats.h"

namespace trireme::cpu {
namespace {

struct Shape {
  int64_t outer, inner, m, k, n;
};

/// A product with its own memory; leading dimensions are wider than the rows.
struct BlocksProblem {
  Shape s;
  std::vector<float> a, b, bias, residual;
  BlockProduct p;

  BlocksProblem(const Shape& shape, bool ta, bool tb) : s(shape) {
    const int64_t a_rows = ta ? s.k : s.m, a_ld = (ta ? s.m : s.k) + 3;
    const int64_t b_rows = tb ? s.n : s.k, b_ld = (tb ? s.k : s.n) + 1;
    a = random_floats(s.outer * s.inner * a_rows * a_ld, 1);
    b = random_floats(s.outer * s.inner * b_rows * b_ld, 2);
    bias = random_floats(s.n, 3);
    residual = random_floats(s.m * (s.n + 2), 4);
    p = {.outer = s.outer, .inner = s.inner, .m = s.m, .k = s.k, .n = s.n};
    p.a = {a.data(), a_ld, ta, s.inner * a_rows * a_ld, a_rows * a_ld};
    p.b = {b.data(), b_ld, tb, s.inner * b_rows * b_ld, b_rows * b_ld};
    p.ldc = s.n + 2;
    p.c_inner = s.m * p.ldc;
    p.c_outer = s.inner * p.c_inner;
  }

  double a_at(int64_t batch, int64_t i, int64_t l) const {
    return a[static_cast<size_t>(batch * p.a.inner + (p.a.transposed ? l * p.a.ld + i : i * p.a.ld + l))];
  }
  double b_at(int64_t batch, int64_t l, int64_t j) const {
    return b[static_cast<size_t>(batch * p.b.inner + (p.b.transposed ? j * p.b.ld + l : l * p.b.ld + j))];
  }
  double at(int64_t batch, int64_t i, int64_t j) const {
    double sum = 0;
    for (int64_t l = 0; l < s.k; ++l) sum += a_at(batch, i, l) * b_at(batch, l, j);
    return sum;
  }

  std::vector<float> run(int threads, Isa isa) {
    base::ThreadPool pool(threads);
    std::vector<float> c(static_cast<size_t>(s.outer * p.c_outer), -7.0f);
    p.c = c.data();
    p.isa = isa;
    std::vector<char> workspace(gemm_blocks_workspace_bytes(p, threads));
    gemm_blocks(p, workspace.data(), pool);
    return c;
  }
};

const std::vector<Shape> kShapes{{1, 1, 1, 1, 1},      {1, 1, 15, 7, 33},  {1, 1, 29, 513, 65},
                                 {1, 1, 64, 1100, 16}, {2, 3, 17, 20, 31}, {1, 1, 100, 3, 400},
                                 {1, 1, 3, 40, 1000},  {3, 1, 14, 32, 32}, {1, 1, 200, 70, 130}};

TEST(GemmBlocks, EveryOrientationAtEveryLevel) {
  for (const Shape& s : kShapes) {
    for (const int form : {0, 1, 2, 3}) {
      BlocksProblem problem(s, form & 1, form & 2);
      for (const Isa isa : usable_isas()) {
        const std::vector<float> c = problem.run(2, isa);
        for (int64_t batch = 0; batch < s.outer * s.inner; ++batch) {
          for (int64_t i = 0; i < s.m; ++i) {
            for (int64_t j = 0; j < s.n; ++j) {
              ASSERT_NEAR(c[static_cast<size_t>(batch * problem.p.c_inner + i * problem.p.ldc + j)],
                          problem.at(batch, i, j), 1e-6 * double(s.k) + 1e-6)
                  << s.m << "x" << s.k << "x" << s.n << " form " << form << " at " << i << ", " << j;
            }
            // What lies between the rows of c stays untouched.
            ASSERT_EQ(c[static_cast<size_t>(batch * problem.p.c_inner + i * problem.p.ldc + s.n)], -7.0f);
          }
        }
      }
    }
  }
}

TEST(GemmBlocks, SameBitsForEveryTeam) {
  for (const int form : {0, 1, 2, 3}) {
    BlocksProblem problem({1, 1, 150, 1030, 333}, form & 1, form & 2);
    std::vector<float> rows(150), columns(333);
    problem.p.row_sums = rows.data();
    problem.p.column_sums = columns.data();
    const std::vector<float> one = problem.run(1, best_isa());
    const std::vector<float> one_rows = rows, one_columns = columns;
    for (const int threads : {2, 3, 4}) {
      EXPECT_EQ(problem.run(threads, best_isa()), one) << threads << " threads";
      EXPECT_EQ(rows, one_rows);
      EXPECT_EQ(columns, one_columns);
    }
    for (int64_t i = 0; i < 150; ++i) {
      double sum = 0;
      for (int64_t l = 0; l < 1030; ++l) sum += problem.a_at(0, i, l);
      EXPECT_NEAR(rows[static_cast<size_t>(i)], sum, 1e-3);
    }
    for (int64_t j = 0; j < 333; ++j) {
      double sum = 0;
      for (int64_t l = 0; l < 1030; ++l) sum += problem.b_at(0, l, j);
      EXPECT_NEAR(columns[static_cast<size_t>(j)], sum, 1e-3);
    }
  }
}

TEST(GemmBlocks, DepthIsSharedWhereResultsAreFewAndKeepsTheBits) {
  for (const int form : {0, 1, 2, 3}) {
    for (const Activation act : {Activation::none, Activation::relu, Activation::clip, Activation::silu}) {
      BlocksProblem problem({1, 1, 30, 5000, 70}, form & 1, form & 2);
      problem.p.epilogue.bias = problem.bias.data();
      problem.p.epilogue.act = act;
      const std::vector<float> one = problem.run(1, best_isa());
      for (const int threads : {2, 3, 4, 5}) EXPECT_EQ(problem.run(threads, best_isa()), one) << threads;
      if (act != Activation::none) continue;
      EXPECT_NEAR(one[static_cast<size_t>(29 * problem.p.ldc + 69)], problem.at(0, 29, 69) + problem.bias[69],
                  5e-4);
    }
  }
}

TEST(GemmBlocks, BiasActivationAndResidual) {
  for (const bool before : {false, true}) {
    for (const Activation act : {Activation::none, Activation::relu, Activation::silu}) {
      BlocksProblem problem({1, 1, 31, 600, 70}, false, true);
      Epilogue& e = problem.p.epilogue;
      e.bias = problem.bias.data();
      e.residual = problem.residual.data();
      e.act = act;
      e.act_before_residual = before;
      const std::vector<float> c = problem.run(2, best_isa());
      auto f = [&](double x) {
        return act == Activation::relu   ? std::max(x, 0.0)
               : act == Activation::silu ? x / (1 + std::exp(-x))
                                         : x;
      };
      for (int64_t i = 0; i < 31; ++i) {
        for (int64_t j = 0; j < 70; ++j) {
          const size_t at = static_cast<size_t>(i * problem.p.ldc + j);
          const double z = problem.at(0, i, j) + double(problem.bias[static_cast<size_t>(j)]);
          const double r = double(problem.residual[at]);
          ASSERT_NEAR(c[at], before ? f(z) + r : f(z + r), 1e-3);
        }
      }
    }
  }
}

}  // namespace
}  // namespace trireme::cpu
