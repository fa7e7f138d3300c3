// adapter_linear against naive loops in double, and the guarantee that a row depends on its own adapter only.
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "backend/cpu/simd/simd_level.h"
#include "ops/test_eval.h"
#include "tests/cut_trial.h"
#include "tests/run_kernels.h"

namespace trireme::ops {
namespace {

using tensor::DType;
using tensor::Tensor;

Tensor slots_of(const std::vector<int32_t>& list) {
  return Tensor::from<int32_t>({static_cast<int64_t>(list.size())}, std::span(list));
}

/// Five adapters in 7 slots; two have a lower rank than there is room for, two slots are empty.
struct Adapters {
  int64_t in, out, rank;
  Tensor ranks, a, b;

  Adapters(int64_t in_width, int64_t out_width, int64_t most_rank)
      : in(in_width),
        out(out_width),
        rank(most_rank),
        ranks(slots_of({static_cast<int32_t>(rank), 1, 0, static_cast<int32_t>((rank + 1) / 2),
                        static_cast<int32_t>(rank), 0, static_cast<int32_t>(rank)})),
        a(tests::random_tensor({7, rank, in}, 1, 0.1f)),
        b(tests::random_tensor({7, rank, out}, 2, 0.1f)) {}

  std::vector<Tensor> operands(const Tensor& y, const Tensor& x, const Tensor& slots) const {
    return {y, x, slots, ranks, a, b};
  }
};

std::vector<double> naive_adapters(const Adapters& w, const Tensor& y, const Tensor& x, const Tensor& slots) {
  std::vector<double> sum = y.to_doubles();
  const auto rows = x.to_doubles(), a = w.a.to_doubles(), b = w.b.to_doubles();
  const auto at = slots.to_ints(), ranks = w.ranks.to_ints();
  for (size_t t = 0; t < at.size(); ++t) {
    if (at[t] < 0) continue;
    for (int64_t r = 0; r < ranks[static_cast<size_t>(at[t])]; ++r) {
      double u = 0;
      for (int64_t k = 0; k < w.in; ++k)
        u += rows[t * static_cast<size_t>(w.in) + static_cast<size_t>(k)] *
             a[static_cast<size_t>((at[t] * w.rank + r) * w.in + k)];
      for (int64_t n = 0; n < w.out; ++n)
        sum[t * static_cast<size_t>(w.out) + static_cast<size_t>(n)] +=
            u * b[static_cast<size_t>((at[t] * w.rank + r) * w.out + n)];
    }
  }
  return sum;
}

std::vector<int32_t> random_slots(size_t n, uint32_t seed) {
  std::mt19937 engine(seed);
  std::vector<int32_t> list;
  for (size_t i = 0; i < n; ++i) list.push_back(static_cast<int32_t>(engine() % 8) - 1);
  return list;
}

TEST(AdapterLinear, MatchesNaiveLoops) {
  struct Case {
    int64_t rows, in, out, rank;
  };
  for (const cpu::SimdLevel& level : cpu::simd_levels()) {
    cpu::simd_force(level);
    for (const Case& c :
         {Case{1, 1, 1, 1}, {5, 33, 17, 3}, {40, 64, 96, 16}, {13, 100, 1100, 9}, {3, 7, 5, 8}}) {
      const Adapters w(c.in, c.out, c.rank);
      const Tensor y = tests::random_tensor({1, c.rows, c.out}, 3),
                   x = tests::random_tensor({1, c.rows, c.in}, 4);
      const Tensor slots = slots_of(random_slots(static_cast<size_t>(c.rows), 5));
      const auto results = tests::run_kernels("adapter_linear", {}, w.operands(y, x, slots));
      ASSERT_EQ(results.size(), 2u);
      for (const auto& r : results)
        tests::expect_close(r.out[0], naive_adapters(w, y, x, slots), 2e-5, 2e-5,
                            r.kernel + " " + level.name);
    }
  }
  cpu::simd_unforce();
}

/// The result of the first kernel.
Tensor run_adapters(const Adapters& w, const Tensor& y, const Tensor& x, const Tensor& slots, int threads) {
  return tests::run_kernels("adapter_linear", {}, w.operands(y, x, slots), 1, {}, threads).at(0).out[0];
}

TEST(AdapterLinear, RowsDoNotDependOnMatesOrThreads) {
  const Adapters w(259, 1033, 16);
  const int64_t rows = 61;
  const Tensor y = tests::random_tensor({1, rows, w.out}, 3), x = tests::random_tensor({1, rows, w.in}, 4);
  const std::vector<int32_t> list = random_slots(static_cast<size_t>(rows), 9);
  const Tensor together = run_adapters(w, y, x, slots_of(list), 3);
  EXPECT_TRUE(run_adapters(w, y, x, slots_of(list), 1).same_as(together));
  const auto row_of = [](const Tensor& t, int64_t row) {
    return t.reshaped({t.dims()[1], t.dims()[2]}).rows(row, row + 1).reshaped({1, 1, t.dims()[2]});
  };
  for (int64_t row = 0; row < rows; ++row) {
    const int32_t slot = list[static_cast<size_t>(row)];
    const Tensor alone = run_adapters(w, row_of(y, row), row_of(x, row), slots_of({slot}), 1);
    ASSERT_TRUE(alone.same_as(row_of(together, row))) << "row " << row << " of slot " << slot;
    const bool adds = slot >= 0 && w.ranks.to_ints()[static_cast<size_t>(slot)] > 0;
    ASSERT_NE(row_of(together, row).same_as(row_of(y, row)), adds) << "row " << row << " of slot " << slot;
  }
}

TEST(AdapterLinear, ReportsBadSlotsAndRanks) {
  const Adapters w(8, 8, 4);
  const Tensor y = tests::random_tensor({1, 2, 8}, 3), x = tests::random_tensor({1, 2, 8}, 4);
  base::ThreadPool pool(1);
  const auto fails = [&](const std::vector<Tensor>& in) {
    try {
      evaluate(table().need("adapter_linear"), {}, in, 1, pool);
    } catch (const base::Error& e) {
      return e.code() == base::ErrorCode::invalid_argument;
    }
    return false;
  };
  EXPECT_FALSE(fails(w.operands(y, x, slots_of({0, -5}))));
  EXPECT_TRUE(fails(w.operands(y, x, slots_of({0, 7}))));
  EXPECT_TRUE(fails(w.operands(y, x, slots_of({0, 1, 2}))));
  EXPECT_TRUE(fails({y, x, slots_of({0, 1}), slots_of({5, 1, 1, 1, 1, 1, 1}), w.a, w.b}));
  EXPECT_TRUE(fails({y, x, slots_of({0, 1}), slots_of({-1, 1, 1, 1, 1, 1, 1}), w.a, w.b}));
  EXPECT_TRUE(fails({y, x, slots_of({0, 1}), slots_of({1, 1}), w.a, w.b}));
  EXPECT_TRUE(fails({y, x, slots_of({0, 1}), w.ranks, w.b.reshaped({7, 2, 16}), w.b}));
}

TEST(AdapterLinear, EveryCutAddsUp) {
  const auto values = [](tensor::Dims dims, uint64_t seed) {
    return testing::random_tensor(DType::f64, std::move(dims), -1, 1, seed);
  };
  for (int parts : {2, 3}) {
    const tests::CutCase c{.op = "adapter_linear",
                           .in = {values({1, 6, 12}, 1), values({1, 6, 18}, 2), slots_of({0, -1, 2, 1, 1, 0}),
                                  slots_of({3, 1, 2}), values({3, 4, 18}, 3), values({3, 4, 12}, 4)},
                           .parts = parts};
    EXPECT_EQ(tests::expect_cuts(c).size(), 3u);
  }
}

}  // namespace
}  // namespace trireme::ops
