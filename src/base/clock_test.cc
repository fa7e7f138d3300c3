// Tests the clocks: the real one moves forward and sleeps; the fake one moves only when told to.
#include "base/clock.h"

#include <gtest/gtest.h>

namespace trireme::base {
namespace {

TEST(Clock, SystemClockMovesAndSleeps) {
  SystemClock clock;
  const int64_t start = clock.now_ns();
  clock.sleep_until(start + 3 * kNsPerMs);
  EXPECT_GE(clock.now_ns(), start + 3 * kNsPerMs);
  EXPECT_GT(clock.wall_ns(), 1'600'000'000 * kNsPerSecond);
}

TEST(Clock, FakeClockObeys) {
  FakeClock clock(100, 1000);
  EXPECT_EQ(clock.now_ns(), 100);
  clock.advance(5);
  EXPECT_EQ(clock.now_ns(), 105);
  clock.sleep_until(90);
  EXPECT_EQ(clock.now_ns(), 105);
  clock.sleep_until(200);
  EXPECT_EQ(clock.now_ns(), 200);
  EXPECT_EQ(clock.wall_ns(), 1100);
}

}  // namespace
}  // namespace trireme::base
