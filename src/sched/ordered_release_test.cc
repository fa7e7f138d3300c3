// Tests that answers leave in request order: out-of-order ends, levels, many threads, answers inside submit.
#include "sched/ordered_release.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <thread>

namespace trireme::sched {
namespace {

TEST(OrderedRelease, HoldsALaterAnswerBack) {
  OrderedRelease order;
  std::vector<int> seen;
  const auto place = [&](uint32_t level, int name) {
    Sink sink = [&seen, name](Outcome&&) { seen.push_back(name); };
    order.place(level, sink);
    return sink;
  };
  const auto a = place(1, 0), b = place(1, 1), urgent = place(0, 2), c = place(1, 3);
  b({});
  c({});
  EXPECT_TRUE(seen.empty());
  urgent({});
  EXPECT_EQ(seen, (std::vector<int>{2}));
  a({.ending = Ending::failed});
  EXPECT_EQ(seen, (std::vector<int>{2, 0, 1, 3}));
}

TEST(OrderedRelease, ManyThreadsOneOrder) {
  OrderedRelease order;
  std::vector<int> seen;  // a line calls its sinks one at a time: no lock
  std::vector<Sink> sinks;
  constexpr int kCount = 4000;
  for (int i = 0; i < kCount; ++i) {
    sinks.emplace_back([&seen, i](Outcome&&) { seen.push_back(i); });
    order.place(0, sinks.back());
  }
  std::shuffle(sinks.begin(), sinks.end(), std::mt19937(3));
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = t; i < kCount; i += 4) sinks[static_cast<size_t>(i)]({});
    });
  }
  for (std::thread& t : threads) t.join();
  ASSERT_EQ(seen.size(), static_cast<size_t>(kCount));
  EXPECT_TRUE(std::is_sorted(seen.begin(), seen.end()));
}

TEST(Sink, TellsTheFirstOutcomeOnly) {
  std::vector<Ending> seen;
  const Sink first = [&seen](Outcome&& outcome) { seen.push_back(outcome.ending); };
  const Sink second = first;
  second({.ending = Ending::failed});
  first({.ending = Ending::done});
  EXPECT_EQ(seen, (std::vector<Ending>{Ending::failed}));
}

}  // namespace
}  // namespace trireme::sched
