// Tests the pace demanded of slow clients, in simulated time.
#include "http/pace.h"

#include <gtest/gtest.h>

namespace trireme::http {
namespace {

constexpr PaceLimits kLimits{.grace_ns = 1'000, .bytes_per_second = 1'000'000'000};  // a byte buys 1 ns

TEST(Pace, WhoOwesNothingIsNeverLate) {
  Pace pace;
  EXPECT_FALSE(pace.is_late(1'000'000));
  EXPECT_FALSE(pace.is_late(1'000'000, 1));
  pace.look(kLimits, 0, 0);
  EXPECT_TRUE(pace.is_late(1'000));
  pace.rest();
  EXPECT_FALSE(pace.is_late(1'000'000, 1));
}

TEST(Pace, EachByteBuysTimeAndNoMoreThanTheGrace) {
  Pace pace;
  pace.look(kLimits, 0, 500);  // the byte count need not begin at 0
  EXPECT_EQ(pace.due_ns(), 1'000);
  pace.look(kLimits, 900, 800);
  EXPECT_EQ(pace.due_ns(), 1'300);
  pace.look(kLimits, 1'000, 1'000'000);  // a burst gains the grace at most
  EXPECT_EQ(pace.due_ns(), 2'000);
  pace.look(kLimits, 1'500, uint64_t{1} << 63);
  EXPECT_EQ(pace.due_ns(), 2'500);
  EXPECT_FALSE(pace.is_late(2'499));
  EXPECT_TRUE(pace.is_late(2'500));
}

/// A client that keeps the pace is never late and one at half the pace is, however the bytes are spread.
TEST(Pace, TheRateDecides) {
  for (const int64_t step_ns : {1, 10, 300}) {
    Pace keeps, trickles;
    int64_t late_ns = 0;
    for (int64_t now_ns = 0; now_ns < 100'000; now_ns += step_ns) {
      const auto bytes = static_cast<uint64_t>(now_ns);
      keeps.look(kLimits, now_ns, bytes);
      trickles.look(kLimits, now_ns, bytes / 2);
      ASSERT_FALSE(keeps.is_late(now_ns)) << now_ns;
      if (late_ns == 0 && trickles.is_late(now_ns)) late_ns = now_ns;
    }
    EXPECT_GE(late_ns, 1'990);
    EXPECT_LE(late_ns, 2'000 + 2 * step_ns);
  }
}

TEST(Pace, TimeInWhichNobodyWaitsForTheClientDoesNotCount) {
  Pace pace;
  pace.look(kLimits, 0, 0);
  pace.look(kLimits, 600, 0);
  pace.look(kLimits, 50'000, 0, false);
  EXPECT_EQ(pace.due_ns(), 50'400);  // 600 of 1,000 are spent, and the pause gives none of them back
  pace.look(kLimits, 50'300, 0);
  EXPECT_TRUE(pace.is_late(50'400));
}

TEST(Pace, SilenceCountsFromTheLastByte) {
  Pace pace;
  pace.look(kLimits, 0, 0);
  EXPECT_EQ(pace.due_ns(200), 200);
  pace.look(kLimits, 150, 1);
  EXPECT_EQ(pace.due_ns(200), 350);
  pace.look(kLimits, 300, 1);
  EXPECT_EQ(pace.due_ns(200), 350);
  EXPECT_EQ(pace.due_ns(5'000), 1'001);
}

}  // namespace
}  // namespace trireme::http
