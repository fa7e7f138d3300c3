// gemm_bf16 against double loops over the widened operands in every orientation, and its bits over team
// sizes.
#include "backend/cpu/dense/gemm_bf16.h"

#include <gtest/gtest.h>

#include <algorithm>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

namespace trireme::cpu {
namespace {

using Bits = std::vector<uint16_t>;

uint16_t to_bf16(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

double to_double(uint16_t x) {
  const uint32_t bits = uint32_t{x} << 16;
  float f;
  std::memcpy(&f, &bits, 4);
  return double(f);
}

Bits random_bits(int64_t n, unsigned seed) {
  std::mt19937 generator(seed);
  std::uniform_real_distribution<float> uniform(-1, 1);
  Bits out(static_cast<size_t>(n));
  for (uint16_t& x : out) x = to_bf16(uniform(generator));
  return out;
}

struct Problem {
  Bits a, b, bias, residual, rows, columns;
  Bf16Product p;

  Problem(int64_t m, int64_t k, int64_t n, int form)
      : a(random_bits(m * k, 1)),
        b(random_bits(k * n, 2)),
        bias(random_bits(n, 3)),
        residual(random_bits(m * n, 4)),
        rows(static_cast<size_t>(m)),
        columns(static_cast<size_t>(n)) {
    const bool ta = form & 1, tb = form & 2;
    p = {.m = m, .k = k, .n = n, .a = {a.data(), ta ? m : k, ta}, .b = {b.data(), tb ? k : n, tb}};
    p.ldc = n;
    p.row_sums = rows.data();
    p.column_sums = columns.data();
  }

  double a_at(int64_t i, int64_t l) const {
    return to_double(a[size_t(p.a.transposed ? l * p.m + i : i * p.k + l)]);
  }
  double b_at(int64_t l, int64_t j) const {
    return to_double(b[size_t(p.b.transposed ? j * p.k + l : l * p.n + j)]);
  }

  Bits run(int threads) {
    base::ThreadPool pool(threads);
    Bits c(static_cast<size_t>(p.m * p.n));
    p.c = c.data();
    std::vector<char> workspace(gemm_bf16_workspace_bytes(p, threads));
    gemm_bf16(p, workspace.data(), pool);
    return c;
  }
};

/// A result rounded to 8 bits of mantissa, of sums with f32's error.
void expect_rounded(uint16_t got, double want, double scale, const std::string& where) {
  EXPECT_NEAR(to_double(got), want, std::abs(want) / 256 + 1e-6 * scale) << where;
}

TEST(GemmBf16, EveryOrientation) {
  if (!has_bf16_products()) GTEST_SKIP() << "the processor has no bf16 products";
  const int64_t shapes[][3] = {{1, 1, 1},      {15, 7, 33},  {29, 513, 65},
                               {40, 2500, 16}, {17, 20, 31}, {100, 3, 400}};
  for (const auto& [m, k, n] : shapes) {
    for (const int form : {0, 1, 2, 3}) {
      Problem problem(m, k, n, form);
      const Bits c = problem.run(2);
      const std::string where = std::to_string(m) + "x" + std::to_string(k) + "x" + std::to_string(n);
      for (int64_t i = 0; i < m; ++i) {
        double row = 0;
        for (int64_t l = 0; l < k; ++l) row += problem.a_at(i, l);
        expect_rounded(problem.rows[size_t(i)], row, double(k), where + " row sum");
        for (int64_t j = 0; j < n; ++j) {
          double sum = 0;
          for (int64_t l = 0; l < k; ++l) sum += problem.a_at(i, l) * problem.b_at(l, j);
          expect_rounded(c[size_t(i * n + j)], sum, double(k), where + " form " + std::to_string(form));
        }
      }
      for (int64_t j = 0; j < n; ++j) {
        double column = 0;
        for (int64_t l = 0; l < k; ++l) column += problem.b_at(l, j);
        expect_rounded(problem.columns[size_t(j)], column, double(k), where + " column sum");
      }
    }
  }
}

TEST(GemmBf16, SameBitsForEveryTeam) {
  if (!has_bf16_products()) GTEST_SKIP() << "the processor has no bf16 products";
  for (const int form : {0, 1, 2, 3}) {
    Problem problem(150, 2100, 333, form);
    const Bits one = problem.run(1), rows = problem.rows, columns = problem.columns;
    for (const int threads : {2, 3, 4}) {
      EXPECT_EQ(problem.run(threads), one) << threads << " threads";
      EXPECT_EQ(problem.rows, rows);
      EXPECT_EQ(problem.columns, columns);
    }
  }
}

TEST(GemmBf16, PackedColumnsGiveTheSameBits) {
  if (!has_bf16_products()) GTEST_SKIP() << "the processor has no bf16 products";
  const int64_t shapes[][3] = {{1, 1, 1}, {1, 2100, 333}, {8, 5, 64}, {33, 4097, 65}, {100, 700, 48}};
  for (const auto& [m, k, n] : shapes) {
    for (const int form : {0, 2}) {
      Problem problem(m, k, n, form);
      problem.p.column_sums = nullptr;
      const Bits want = problem.run(2), rows = problem.rows;
      std::vector<float> packed(static_cast<size_t>(packed_bf16_floats(k, n)));
      pack_bf16_columns(problem.p.b, k, n, packed.data());
      problem.p.packed_b = packed.data();
      problem.p.b.data = nullptr;
      EXPECT_EQ(problem.run(3), want) << m << "x" << k << "x" << n;
      EXPECT_EQ(problem.rows, rows);
    }
  }
}

TEST(GemmBf16, WideResultsRoundToTheOthers) {
  if (!has_bf16_products()) GTEST_SKIP() << "the processor has no bf16 products";
  for (const int form : {0, 1, 2, 3}) {
    Problem problem(45, 2100, 67, form);
    const Bits want = problem.run(2), rows = problem.rows, columns = problem.columns;
    std::vector<float> c(want.size()), row_sums(rows.size()), column_sums(columns.size());
    problem.p.is_wide = true;
    problem.p.c = c.data();
    problem.p.row_sums = row_sums.data();
    problem.p.column_sums = column_sums.data();
    base::ThreadPool pool(3);
    std::vector<char> workspace(gemm_bf16_workspace_bytes(problem.p, 3));
    gemm_bf16(problem.p, workspace.data(), pool);
    for (size_t i = 0; i < c.size(); ++i) ASSERT_EQ(to_bf16(c[i]), want[i]) << form << " at " << i;
    for (size_t i = 0; i < rows.size(); ++i) EXPECT_EQ(to_bf16(row_sums[i]), rows[i]);
    for (size_t i = 0; i < columns.size(); ++i) EXPECT_EQ(to_bf16(column_sums[i]), columns[i]);
  }
}

TEST(GemmBf16, RowsDoNotDependOnTheirNumber) {
  if (!has_bf16_products()) GTEST_SKIP() << "the processor has no bf16 products";
  Problem many(40, 3000, 130, 2);
  const Bits want = many.run(3);
  for (const int64_t row : {0, 7, 39}) {
    Problem one(1, 3000, 130, 2);
    std::copy_n(many.a.begin() + row * 3000, 3000, one.a.begin());
    const Bits got = one.run(2);
    EXPECT_TRUE(std::equal(got.begin(), got.end(), want.begin() + row * 130)) << "row " << row;
  }
}

TEST(GemmBf16, BiasActivationAndResidual) {
  if (!has_bf16_products()) GTEST_SKIP() << "the processor has no bf16 products";
  for (const int64_t k : {60, 1500}) {
    for (const bool before : {false, true}) {
      Problem problem(31, k, 70, 2);
      problem.p.bias = problem.bias.data();
      problem.p.residual = problem.residual.data();
      problem.p.epilogue.act = Activation::relu;
      problem.p.epilogue.act_before_residual = before;
      const Bits c = problem.run(2);
      for (int64_t i = 0; i < 31; ++i) {
        for (int64_t j = 0; j < 70; ++j) {
          double z = to_double(problem.bias[size_t(j)]);
          for (int64_t l = 0; l < k; ++l) z += problem.a_at(i, l) * problem.b_at(l, j);
          const double r = to_double(problem.residual[size_t(i * 70 + j)]);
          const double want = before ? std::max(z, 0.0) + r : std::max(z + r, 0.0);
          expect_rounded(c[size_t(i * 70 + j)], want, double(k) * 10, "epilogue");
        }
      }
    }
  }
}

}  // namespace
}  // namespace trireme::cpu
