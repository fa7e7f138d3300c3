// Reductions against naive loops in double, over layouts, sizes, levels and thread counts.
#include "backend/cpu/norm/reduce_axes.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "backend/cpu/simd/simd_level.h"
#include "base/error.h"

namespace trireme::cpu {
namespace {

constexpr ReduceOp kOps[] = {ReduceOp::sum,     ReduceOp::mean,       ReduceOp::max, ReduceOp::min,
                             ReduceOp::prod,    ReduceOp::l1,         ReduceOp::l2,  ReduceOp::sum_square,
                             ReduceOp::log_sum, ReduceOp::log_sum_exp};

std::vector<float> reduce_values(int64_t n) {
  std::vector<float> v(static_cast<size_t>(n));
  for (size_t i = 0; i < v.size(); ++i)
    v[i] = static_cast<float>(1.02 + std::sin(static_cast<double>(i * i % 10007)));
  return v;
}

double reduced(ReduceOp op, const std::vector<double>& x) {
  double sum = 0, max = -HUGE_VAL, min = HUGE_VAL, prod = 1, l1 = 0, square = 0, exps = 0;
  for (double v : x) {
    sum += v, l1 += std::abs(v), square += v * v, prod *= v;
    max = std::max(max, v), min = std::min(min, v);
  }
  for (double v : x) exps += std::exp(v - max);
  switch (op) {
    case ReduceOp::sum: return sum;
    case ReduceOp::mean: return sum / static_cast<double>(x.size());
    case ReduceOp::max: return max;
    case ReduceOp::min: return min;
    case ReduceOp::prod: return prod;
    case ReduceOp::l1: return l1;
    case ReduceOp::l2: return std::sqrt(square);
    case ReduceOp::sum_square: return square;
    case ReduceOp::log_sum: return std::log(sum);
    case ReduceOp::log_sum_exp: return x.empty() ? -HUGE_VAL : max + std::log(exps);
  }
  return NAN;
}

std::vector<double> line_of(const std::vector<float>& x, int64_t axis, int64_t inner, int64_t o, int64_t i) {
  std::vector<double> line;
  for (int64_t a = 0; a < axis; ++a) line.push_back(x[static_cast<size_t>((o * axis + a) * inner + i)]);
  return line;
}

class ReduceAtLevel : public testing::TestWithParam<SimdLevel> {
 protected:
  void SetUp() override { simd_force(GetParam()); }
  void TearDown() override { simd_unforce(); }
  base::ThreadPool pool_{3};
};

TEST_P(ReduceAtLevel, EveryOperationAndLayout) {
  for (int64_t outer : {0, 1, 3}) {
    for (int64_t axis : {0, 1, 2, 17, 64, 300}) {
      for (int64_t inner : {1, 3, 16, 64, 83}) {
        const std::vector<float> x = reduce_values(outer * axis * inner);
        for (ReduceOp op : kOps) {
          std::vector<float> y(static_cast<size_t>(outer * inner + 1), -77.0f);
          reduce(op, {x.data(), y.data(), outer, axis, inner}, pool_);
          for (int64_t o = 0; o < outer; ++o) {
            for (int64_t i = 0; i < inner; ++i) {
              const double want = reduced(op, line_of(x, axis, inner, o, i));
              const float got = y[static_cast<size_t>(o * inner + i)];
              if (std::isnan(want)) {
                ASSERT_TRUE(std::isnan(got));
              } else if (std::isinf(want)) {
                ASSERT_EQ(got, want) << static_cast<int>(op);
              } else {
                const double loose = op == ReduceOp::prod ? 3e-5 : 2e-6;
                ASSERT_NEAR(got, want, loose * std::abs(want) + 1e-7)
                    << static_cast<int>(op) << " axis " << axis << " inner " << inner;
              }
            }
          }
          ASSERT_EQ(y.back(), -77.0f);
        }
      }
    }
  }
}

TEST_P(ReduceAtLevel, ArgExtremes) {
  for (int64_t axis : {1, 2, 16, 33, 200}) {
    for (int64_t inner : {1, 5, 16, 35}) {
      std::vector<float> x = reduce_values(2 * axis * inner);
      for (float& v : x) v = std::round(v * 4);  // makes ties
      for (int option = 0; option < 4; ++option) {
        const bool min = option & 1, last = option & 2;
        std::vector<int64_t> y(static_cast<size_t>(2 * inner));
        arg_reduce({x.data(), y.data(), 2, axis, inner, min, last}, pool_);
        for (int64_t o = 0; o < 2; ++o) {
          for (int64_t i = 0; i < inner; ++i) {
            const std::vector<double> line = line_of(x, axis, inner, o, i);
            size_t want = 0;
            for (size_t a = 1; a < line.size(); ++a) {
              const bool better = min ? line[a] < line[want] : line[a] > line[want];
              if (better || (last && line[a] == line[want])) want = a;
            }
            ASSERT_EQ(y[static_cast<size_t>(o * inner + i)], static_cast<int64_t>(want))
                << axis << " " << inner;
          }
        }
      }
    }
  }
  EXPECT_THROW(arg_reduce({nullptr, nullptr, 1, 0, 1}, pool_), base::Error);
}

TEST_P(ReduceAtLevel, NanIsTheExtreme) {
  for (int64_t inner : {1, 2}) {
    std::vector<float> x = reduce_values(50 * inner);
    x[static_cast<size_t>(20 * inner)] = NAN;
    x[static_cast<size_t>(40 * inner)] = NAN;
    std::vector<float> y(static_cast<size_t>(inner));
    std::vector<int64_t> at(static_cast<size_t>(inner));
    for (ReduceOp op : {ReduceOp::max, ReduceOp::min, ReduceOp::sum}) {
      reduce(op, {x.data(), y.data(), 1, 50, inner}, pool_);
      EXPECT_TRUE(std::isnan(y[0]));
    }
    arg_reduce({x.data(), at.data(), 1, 50, inner, false, false}, pool_);
    EXPECT_EQ(at[0], 20);
    arg_reduce({x.data(), at.data(), 1, 50, inner, true, true}, pool_);
    EXPECT_EQ(at[0], 40);
  }
}

INSTANTIATE_TEST_SUITE_P(Levels, ReduceAtLevel, testing::ValuesIn(simd_levels()),
                         [](const auto& level) { return level.param.name; });

TEST(Reduce, LongAxisIsAccurateAndTheSameForEveryThreadCountAndNeighbour) {
  base::ThreadPool one(1), four(4);
  const int64_t n = 1000003;
  const std::vector<float> x = reduce_values(n * 2);
  for (ReduceOp op : kOps) {
    if (op == ReduceOp::prod) continue;  // would underflow
    float a[2], b[2], alone = 0;
    reduce(op, {x.data(), a, 2, n, 1}, one);
    reduce(op, {x.data(), b, 2, n, 1}, four);
    reduce(op, {x.data() + n, &alone, 1, n, 1}, four);
    EXPECT_EQ(0, std::memcmp(a, b, sizeof a));
    EXPECT_EQ(a[1], alone);
    const double want = reduced(op, line_of(x, n, 1, 0, 0));
    EXPECT_NEAR(a[0], want, 3e-7 * std::abs(want));
    std::vector<float> c(200), d(200);
    reduce(op, {x.data(), c.data(), 2, 9999, 100}, one);
    reduce(op, {x.data(), d.data(), 2, 9999, 100}, four);
    EXPECT_EQ(0, std::memcmp(c.data(), d.data(), 800));
    // The first of two outer indices alone is divided among the team, with the same result.
    reduce(op, {x.data(), d.data(), 1, 9999, 100}, four);
    EXPECT_EQ(0, std::memcmp(c.data(), d.data(), 400));
  }
}

}  // namespace
}  // namespace trireme::cpu
