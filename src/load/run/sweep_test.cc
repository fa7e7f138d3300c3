// Sweeps and stability: points, refusals, and the windows that count as settled.
#include "load/run/sweep.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace trireme::load {
namespace {

using Points = std::vector<double>;

TEST(Sweep, Points) {
  EXPECT_EQ(Sweep::parse("1,2,8").points, (Points{1, 2, 8}));
  EXPECT_EQ(Sweep::parse("16").points, (Points{16}));
  EXPECT_EQ(Sweep::parse("concurrency=1:64:2x").points, (Points{1, 2, 4, 8, 16, 32, 64}));
  EXPECT_EQ(Sweep::parse("1:60:2x").points, (Points{1, 2, 4, 8, 16, 32}));
  EXPECT_EQ(Sweep::parse("3:5").points, (Points{3, 4, 5}));
  const Sweep rates = Sweep::parse("rate=0.1:0.3:0.1");
  EXPECT_TRUE(rates.rates);
  ASSERT_EQ(rates.points.size(), 3u);
  EXPECT_DOUBLE_EQ(rates.points[2], 0.3);
  EXPECT_FALSE(Sweep::parse("concurrency=3").rates);
}

TEST(Sweep, OtherTextsAreRefused) {
  for (const char* bad : {"", "a", "1,", "0", "-1", "4:1", "1:8:1x", "1:8:0", "1:8:2:2", "threads=1", "1:1e9",
                          "70000", "inf", "1:8:x", "rate=", "rate=1e8", "rate=1e-7"}) {
    EXPECT_THROW(Sweep::parse(bad), base::Error) << bad;
  }
}

TEST(Stability, ThreeWindowsWithinTheShare) {
  Stability s(0.1);
  s.add(100, 10);
  s.add(105, 10);
  EXPECT_FALSE(s.stable());  // two are not enough
  s.add(95, 10.5);
  EXPECT_TRUE(s.stable());
  s.add(140, 10);  // the newest three: 105, 95, 140
  EXPECT_FALSE(s.stable());
  s.add(140, 10);
  s.add(140, 13);  // throughput settled, latency not
  EXPECT_FALSE(s.stable());
  s.add(140, 13);
  s.add(140, 13);
  EXPECT_TRUE(s.stable());
  EXPECT_EQ(s.trials(), 8u);
}

TEST(Stability, GivesUpAfterTenWindows) {
  Stability s(0.1);
  for (int i = 0; i < 9; ++i) s.add(i % 2 == 0 ? 100 : 200, 10);
  EXPECT_FALSE(s.done());
  s.add(500, 10);
  EXPECT_TRUE(s.done());
  EXPECT_FALSE(s.stable());
  Stability dead(0.1);
  for (int i = 0; i < 3; ++i) dead.add(0, 0);
  EXPECT_FALSE(dead.stable());  // nothing answered: not a settled load
}

}  // namespace
}  // namespace trireme::load
