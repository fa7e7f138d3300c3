// Tests predictions of batch times: for known sizes, sizes in between, unknown groups, and bounded memory.
#include "sched/policy/batch_cost.h"

#include <gtest/gtest.h>

namespace trireme::sched {
namespace {

TEST(BatchCost, PredictsWhatRanAndWhatLiesBetween) {
  BatchCost cost;
  EXPECT_EQ(cost.predict(1, 4), 0);
  cost.observe(1, 2, 1000);
  cost.observe(1, 8, 4000);
  EXPECT_EQ(cost.predict(1, 2), 1000);
  EXPECT_EQ(cost.predict(1, 5), 2500);
  EXPECT_EQ(cost.predict(1, 1), 1000);   // no smaller size is known
  EXPECT_EQ(cost.predict(1, 16), 8000);  // nor a larger one
  EXPECT_EQ(cost.predict(2, 2), 0);      // another group
}

TEST(BatchCost, FollowsChangesAndShrugsOffAStall) {
  BatchCost cost;
  for (int i = 0; i < 20; ++i) cost.observe(0, 1, 10'000'000);
  cost.observe(0, 1, 10'000'000'000);
  EXPECT_LT(cost.predict(0, 1), 16'000'000);
  for (int i = 0; i < 60; ++i) cost.observe(0, 1, 5'000'000);
  EXPECT_NEAR(static_cast<double>(cost.predict(0, 1)), 5e6, 2e5);
}

TEST(BatchCost, ForgetsWhatWasNotSeenForLongest) {
  BatchCost cost;
  for (uint64_t g = 0; g < 10'000; ++g) {
    cost.observe(g, 1, 100);
    cost.observe(7, 1, 100);
  }
  EXPECT_EQ(cost.predict(7, 1), 100);
  EXPECT_EQ(cost.predict(5, 1), 0);
  EXPECT_EQ(cost.predict(9'999, 1), 100);
}

}  // namespace
}  // namespace trireme::sched
