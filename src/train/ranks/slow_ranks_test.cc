// Tests which ranks count as slow, and that all ranks learn this at the same steps.
#include "train/ranks/slow_ranks.h"

#include <gtest/gtest.h>

#include "comm/local.h"
#include "passes/strategy.h"

namespace trireme::train {
namespace {

TEST(SlowRanks, AreThoseAboveTheMedianOfTheirPeers) {
  EXPECT_TRUE(slow_ranks({10, 10.5, 11, 11.9}, {0, 0, 0, 0}).empty());
  const auto one = slow_ranks({10, 10, 13, 10}, {0, 0, 0, 0});
  ASSERT_EQ(one.size(), 1u);
  EXPECT_EQ(one[0].rank, 2);
  EXPECT_EQ(one[0].busy_ms, 13);
  EXPECT_EQ(one[0].median_ms, 10);
  EXPECT_TRUE(slow_ranks({10, 10, 20, 20}, {0, 0, 1, 1}).empty());  // a stage with more work is not slow
  EXPECT_EQ(slow_ranks({10, 13}, {0, 0}).size(), 1u);
  EXPECT_TRUE(slow_ranks({5}, {0}).empty());
}

TEST(SlowRanks, EveryRankHearsTheSame) {
  comm::LocalWorld world(4);
  world.run([](comm::Communicator& c) {
    comm::Mesh mesh(c, passes::Strategy{.dp = 2, .pp = 2}.mesh());
    const Ranks ranks(&mesh);
    SlowRanks watch(ranks);
    for (int64_t step = 1; step <= 3 * SlowRanks::kWindow; ++step) {
      const bool limps = c.rank() == 3 && step <= SlowRanks::kWindow;
      const double own = c.rank() < 2 ? 4 : 8;  // stages take different times
      const std::vector<SlowRank> slow = watch.observe(limps ? 2 * own : own);
      ASSERT_EQ(slow.size(), step == SlowRanks::kWindow ? 1u : 0u) << step;
      EXPECT_TRUE(slow.empty() || slow[0].rank == 3);
    }
  });
}

}  // namespace
}  // namespace trireme::train
