// Tests when background work may begin, with arrival times written by hand.
#include "sched/policy/background_share.h"

#include <gtest/gtest.h>

#include <random>

#include "base/clock.h"

namespace trireme::sched {
namespace {

constexpr int64_t kMs = base::kNsPerMs;

TEST(BackgroundShare, HasAllWhileNobodyAsks) {
  const BackgroundShare share;
  EXPECT_EQ(share.at(7).most_ns, INT64_MAX);
}

TEST(BackgroundShare, TakesShortBatchesBetweenRequestsAndAnyAfterASilence) {
  BackgroundShare share;
  for (int64_t i = 1; i <= 200; ++i) {
    share.arrived(i * 10 * kMs);
    share.answered(32 * kMs);
  }
  const int64_t last = 2000 * kMs;
  EXPECT_EQ(share.at(last + kMs).most_ns, 2 * kMs);
  share.ran(last, 10 * kMs);
  EXPECT_NEAR(static_cast<double>(share.at(last).next_ns - last), 50e6, 1e6);
  EXPECT_EQ(share.at(last + 49 * kMs).most_ns, 2 * kMs);
  EXPECT_EQ(share.at(last + 51 * kMs).most_ns, INT64_MAX);
  // Under steady traffic, a request now and then may run, so that background work always progresses.
  share.ran(last + kMs, kMs / 4);
  EXPECT_FALSE(share.at(last + 16 * kMs).may_be_one);
  EXPECT_EQ(share.at(last + 16 * kMs).next_ns, last + 17 * kMs);
  EXPECT_TRUE(share.at(last + 17 * kMs).may_be_one);
  share.arrived(last + 1'000'000 * kMs);  // a pause of about a quarter of an hour
  share.ran(last, 1'000'000 * kMs);
  EXPECT_LT(share.at(0).next_ns - (last + 1'000'000 * kMs), 70 * kMs) << "what is usual has not changed";
}

TEST(BackgroundShare, FewIndependentRequestsMeetALongBatch) {
  BackgroundShare share;
  std::mt19937_64 random(3);
  std::exponential_distribution<double> gap(1.0 / 8e6);
  int64_t now = kMs, met = 0;
  constexpr int64_t kRequests = 200'000;
  share.ran(0, INT64_MAX / 128);  // the rest never ends
  for (int64_t i = 0; i < kRequests; ++i) {
    now += static_cast<int64_t>(gap(random));
    met += i > 100 && now > share.at(now - 1).next_ns ? 1 : 0;
    share.arrived(now);
  }
  EXPECT_LT(met, kRequests / 80);
  EXPECT_GT(met, kRequests / 1000) << "it still finds gaps";
}

}  // namespace
}  // namespace trireme::sched
