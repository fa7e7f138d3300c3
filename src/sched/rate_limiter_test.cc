// Tests the rate limiter: totals, weights, no starvation of large needs, and refusals.
#include "sched/rate_limiter.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace trireme::sched {
namespace {

struct Instances {
  RateLimiter limiter;
  std::map<uint64_t, int> grants;
  uint64_t add(std::vector<RateNeed> needs, uint32_t priority = 1) {
    const auto number = std::make_shared<uint64_t>(0);
    *number = limiter.add({std::move(needs), priority}, [this, number] { ++grants[*number]; });
    return *number;
  }
};

TEST(RateLimiter, ATotalIsTheLargestNeedUnlessTold) {
  Instances t;
  const uint64_t a = t.add({{"R", false, 2}}), b = t.add({{"R", false, 1}}), c = t.add({{"R", false, 1}});
  EXPECT_TRUE(t.limiter.ask(b));
  EXPECT_TRUE(t.limiter.ask(c));
  EXPECT_FALSE(t.limiter.ask(a));
  t.limiter.give_back(b, true);
  EXPECT_EQ(t.grants[a], 0);
  t.limiter.give_back(c, true);
  EXPECT_EQ(t.grants[a], 1);
}

TEST(RateLimiter, ALargeNeedIsNotStarvedAndOthersGoOn) {
  RateLimiter limiter({RateTotal::parse("R:4"), RateTotal::parse("S:1")});
  int large_runs = 0;
  const uint64_t small = limiter.add({{{"R", false, 3}}}, [] {}),
                 next = limiter.add({{{"R", false, 1}}}, [] {}),
                 other = limiter.add({{{"S", false, 1}}}, [] {}),
                 large = limiter.add({{{"R", false, 4}}}, [&] { ++large_runs; });
  EXPECT_TRUE(limiter.ask(small));
  EXPECT_FALSE(limiter.ask(large));
  EXPECT_FALSE(limiter.ask(next));  // one R is left, but the large one came first
  EXPECT_TRUE(limiter.ask(other));
  limiter.give_back(small, true);
  EXPECT_EQ(large_runs, 1);
}

TEST(RateLimiter, PriorityIsAWeight) {
  Instances t;
  const std::vector<uint64_t> all{t.add({{"R", true, 1}}, 1), t.add({{"R", true, 1}}, 2),
                                  t.add({{"R", true, 1}}, 4)};
  std::map<uint64_t, int> runs;
  uint64_t holder = all[0];
  ASSERT_TRUE(t.limiter.ask(all[0]));
  ASSERT_FALSE(t.limiter.ask(all[1]));
  ASSERT_FALSE(t.limiter.ask(all[2]));
  for (int i = 0; i < 700; ++i) {
    ++runs[holder];
    const auto before = t.grants;
    if (t.limiter.give_back(holder, true, true)) continue;
    for (uint64_t other : all) {
      if (t.grants[other] != (before.count(other) > 0 ? before.at(other) : 0)) holder = other;
    }
  }
  EXPECT_NEAR(runs[all[0]], 400, 2);
  EXPECT_NEAR(runs[all[1]], 200, 2);
  EXPECT_NEAR(runs[all[2]], 100, 2);
}

TEST(RateLimiter, ANewcomerDoesNotKeepTheOthersOut) {
  Instances t;
  const uint64_t old = t.add({{"R", false, 1}});
  for (int i = 0; i < 1000; ++i) {
    ASSERT_TRUE(t.limiter.ask(old));
    t.limiter.give_back(old, true);
  }
  const uint64_t fresh = t.add({{"R", false, 1}});
  ASSERT_TRUE(t.limiter.ask(fresh));
  ASSERT_FALSE(t.limiter.ask(old));
  t.limiter.give_back(fresh, true);
  EXPECT_EQ(t.grants[old], 1);
  ASSERT_FALSE(t.limiter.ask(fresh));
  t.limiter.give_back(old, true);
  EXPECT_EQ(t.grants[fresh], 1);
}

TEST(RateLimiter, WhatAnUnloadedModelHeldIsFree) {
  Instances t;
  const uint64_t a = t.add({{"R", false, 1}}), b = t.add({{"R", false, 1}});
  ASSERT_TRUE(t.limiter.ask(a));
  ASSERT_FALSE(t.limiter.ask(b));
  t.limiter.remove(a);
  EXPECT_EQ(t.grants[b], 1);
}

TEST(RateLimiter, AResourceThatNobodyNeedsMayBecomeOfAnotherPlace) {
  RateLimiter limiter({RateTotal::parse("G:1:global"), RateTotal::parse("T:2")});
  const auto add = [&](std::vector<RateNeed> needs) { return limiter.add({std::move(needs), 1}, [] {}); };
  const uint64_t first = add({{"R", true, 1}, {"G", true, 1}, {"T", true, 1}});
  const uint64_t second = add({{"R", true, 1}});
  limiter.remove(first);
  EXPECT_THROW(add({{"R", false, 1}}), base::Error) << "another needs it still";
  EXPECT_NO_THROW(add({{"T", false, 1}}));
  limiter.remove(second);
  EXPECT_NO_THROW(add({{"R", false, 1}}));
  EXPECT_THROW(add({{"R", true, 1}}), base::Error);
  EXPECT_THROW(add({{"G", false, 1}}), base::Error) << "the server was told";
}

TEST(RateLimiter, RefusesWhatCannotBe) {
  RateLimiter limiter({RateTotal::parse("R:2:0"), RateTotal::parse("G:1:global")});
  const auto add = [&](std::vector<RateNeed> needs) { limiter.add({std::move(needs), 1}, [] {}); };
  EXPECT_THROW(add({{"R", false, 3}}), base::Error);
  EXPECT_THROW(add({{"R", true, 1}}), base::Error);
  EXPECT_THROW(add({{"G", false, 1}}), base::Error);
  EXPECT_THROW(add({{"R", false, 1}, {"R", false, 1}}), base::Error);
  EXPECT_NO_THROW(add({{"R", false, 2}, {"G", true, 1}}));
  for (const char* text : {"", "R", "R:", "R:x", ":1", "R:1:2", "R:-1"})
    EXPECT_THROW(RateTotal::parse(text), base::Error) << text;
}

}  // namespace
}  // namespace trireme::sched
