// Tests predictions of batch times: for known sizes, sizes in between, unknown groups, and bounded memory.
#include "sched/policy/batch_cost.h"

#include <gtest/gtest.h>

#include "base/clock.h"

namespace trireme::sched {
namespace {

TEST(BatchCost, PredictsWhatRanAndWhatLiesBetween) {
  BatchCost cost;
  EXPECT_EQ(cost.predict(1, 4), 0);
  cost.observe(1, 2, 1000, 1000);
  cost.observe(1, 8, 4000, 5000);
  EXPECT_EQ(cost.predict(1, 2), 1000);
  EXPECT_EQ(cost.predict(1, 5), 2500);
  EXPECT_EQ(cost.predict(1, 1), 1000);   // no smaller size is known
  EXPECT_EQ(cost.predict(1, 16), 8000);  // nor a larger one
  EXPECT_EQ(cost.predict(2, 2), 0);      // another group
}

TEST(BatchCost, FollowsChangesAndShrugsOffAStall) {
  BatchCost cost;
  int64_t now_ns = 0;
  const auto observe = [&](int64_t ns) { cost.observe(0, 1, ns, now_ns += ns); };
  for (int i = 0; i < 20; ++i) observe(10'000'000);
  observe(10'000'000'000);
  EXPECT_LT(cost.predict(0, 1), 16'000'000);
  for (int i = 0; i < 60; ++i) observe(5'000'000);
  EXPECT_NEAR(static_cast<double>(cost.predict(0, 1)), 5e6, 2e5);
}

using base::kNsPerMs;

// The first batch of a size may have compiled its program.
TEST(BatchCost, OneSlowBatchIsNotTakenForTheUsual) {
  BatchCost cost;
  cost.observe(1, 4, 500 * kNsPerMs, 500 * kNsPerMs);
  EXPECT_EQ(cost.predict(1, 4), 500 * kNsPerMs);
  EXPECT_EQ(cost.predict_lately(1, 4, 500 * kNsPerMs), 0);
  cost.observe(1, 4, 5 * kNsPerMs, 510 * kNsPerMs);
  EXPECT_EQ(cost.predict(1, 4), 5 * kNsPerMs);
  EXPECT_EQ(cost.predict_lately(1, 4, 510 * kNsPerMs), 5 * kNsPerMs);
  // If the second is as slow, that is what it costs.
  cost.observe(2, 4, 500 * kNsPerMs, 2000 * kNsPerMs);
  cost.observe(2, 4, 400 * kNsPerMs, 3000 * kNsPerMs);
  EXPECT_GT(cost.predict_lately(2, 4, 3000 * kNsPerMs), 400 * kNsPerMs);
}

TEST(BatchCost, TimesOfLongAgoAreLearnedAnewIfTheyHaveFallen) {
  BatchCost cost;
  int64_t now_ms = 0;
  const auto observe = [&](int64_t rows, int64_t ms) {
    cost.observe(1, rows, ms * kNsPerMs, (now_ms += ms) * kNsPerMs);
  };
  const auto lately_ms = [&](int64_t rows) {
    return cost.predict_lately(1, rows, now_ms * kNsPerMs) / kNsPerMs;
  };
  for (int i = 0; i < 9; ++i) observe(8, 400);
  for (int i = 0; i < 9; ++i) observe(2, 100);
  EXPECT_EQ(lately_ms(8), 400);
  EXPECT_EQ(lately_ms(4), 200);
  now_ms += 2500;  // more than a second and ten times 100 ms; less than a second and ten times 400 ms
  EXPECT_EQ(lately_ms(2), 400);
  EXPECT_EQ(cost.predict(1, 2), 100 * kNsPerMs);
  now_ms += 2500;
  EXPECT_EQ(lately_ms(8), 0);
  EXPECT_EQ(cost.predict(1, 8), 400 * kNsPerMs);
  observe(8, 20);
  EXPECT_EQ(cost.predict(1, 8), 20 * kNsPerMs);
  EXPECT_EQ(lately_ms(8), 20);
}

TEST(BatchCost, ForgetsWhatWasNotSeenForLongest) {
  BatchCost cost;
  for (uint64_t g = 0; g < 10'000; ++g) {
    cost.observe(g, 1, 100, 0);
    cost.observe(7, 1, 100, 0);
  }
  EXPECT_EQ(cost.predict(7, 1), 100);
  EXPECT_EQ(cost.predict(5, 1), 0);
  EXPECT_EQ(cost.predict(9'999, 1), 100);
}

}  // namespace
}  // namespace trireme::sched
