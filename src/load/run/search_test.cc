// The search for the highest load, over servers that are a formula.
#include "load/run/search.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <span>

#include "base/clock.h"
#include "base/error.h"

namespace trireme::load {
namespace {

/// A second of `load` requests to a server that answers at most `most` of them, each in `latency_ns`.
Measured second_of(double load, double most, int64_t latency_ns) {
  Measured m;
  LoadResult& r = m.result;
  r.offered_rate = load;
  r.window_s = 1;
  r.scheduled = r.succeeded = static_cast<int64_t>(load);
  r.completed_in_window = static_cast<int64_t>(std::min(load, most));
  r.latency.record(latency_ns, r.succeeded);
  return m;
}

Search rates(double start, std::function<Measured(double)> run) {
  return {.start = start, .least = 0.01, .most = 1e9, .run = std::move(run)};
}

TEST(Search, EndsWithinFivePercentOfWhatTheServerCan) {
  for (const double start : {25.0, 150.0, 3000.0}) {
    std::vector<Measured> runs;
    const double found =
        find_highest(rates(start, [](double load) { return second_of(load, 200, 1); }), runs);
    // 5 % more than it answers, and a few, is still called keeping up.
    EXPECT_GT(found, 200 / 0.95 / 1.06) << start;
    EXPECT_LT(found, 200 / 0.95 * 1.01) << start;
    EXPECT_LT(runs.size(), 16u) << start;
    double before = 0;
    for (const Measured& m : runs) {
      EXPECT_GT(m.result.offered_rate, before) << "by load, each once";
      before = m.result.offered_rate;
      EXPECT_EQ(sustained(m), m.result.offered_rate <= found);
    }
  }
}

/// Ten seconds of requests at equal distances, after one that is not counted, at a server that takes `most`
/// at a time and answers each in five seconds.
Measured ten_seconds_of(double load, size_t most) {
  constexpr double kCountedFrom = 1, kEnd = 11, kAnswer = 5;
  Measured m;
  LoadResult& r = m.result;
  r.offered_rate = load;
  r.window_s = kEnd - kCountedFrom;
  r.interval_ns = base::kNsPerSecond / 5;
  r.intervals.resize(50);
  const auto interval = [&](double at) -> Interval& {
    return r.intervals[std::min(r.intervals.size() - 1, static_cast<size_t>((at - kCountedFrom) * 5))];
  };
  std::vector<double> free_at(most);  // each of its places
  for (double due = 0; (due += 1 / load) < kEnd;) {
    const auto place = std::min_element(free_at.begin(), free_at.end());
    const double ended = *place = std::max(*place, due) + kAnswer;
    if (due >= kCountedFrom) {
      const auto latency_ns = static_cast<int64_t>((ended - due) * 1e9);
      ++r.scheduled;
      ++r.succeeded;
      r.latency.record(latency_ns);
      interval(due).latency.record(latency_ns);
    }
    if (ended >= kCountedFrom && ended < kEnd) {
      ++r.completed_in_window;
      ++interval(ended).completed;
    }
  }
  return m;
}

TEST(Search, AnswersThatTakeLongerThanTheWarmUpAreNoQueue) {
  for (const double load : {2.0, 20.0, 200.0}) {
    const auto room = static_cast<size_t>(load * 5 * 2);
    EXPECT_TRUE(sustained(ten_seconds_of(load, room))) << load;
    // The same in windows that follow each other.
    Measured settled = ten_seconds_of(load, room);
    settled.result.append(ten_seconds_of(load, room).result);
    EXPECT_EQ(settled.result.windows, 2u);
    EXPECT_TRUE(sustained(settled)) << load;
  }
  // With room for half of what comes, or two thirds, there is one.
  for (const double load : {20.0, 200.0}) {
    EXPECT_FALSE(sustained(ten_seconds_of(load, static_cast<size_t>(load * 5 / 2)))) << load;
    EXPECT_FALSE(sustained(ten_seconds_of(load, static_cast<size_t>(load * 5 * 2 / 3)))) << load;
  }
}

TEST(Search, FewRequestsThatComeByChanceAreSustained) {
  Measured m = second_of(1, 1, 1);
  m.result.offered_rate = 1;
  m.result.window_s = 10;
  m.result.scheduled = m.result.completed_in_window = 6;  // ten were to be expected
  EXPECT_TRUE(sustained(m));
}

TEST(Search, AGoalThatIsMissedEndsTheClimb) {
  std::vector<Measured> runs;
  const Slo goal = Slo::parse("p90=40ms");
  const double found =
      find_highest(rates(25,
                         [&](double load) {
                           Measured m = second_of(
                               load, 1e9, static_cast<int64_t>(load) * base::kNsPerMs / 2);  // 40 ms at 80/s
                           m.slos = judge(std::span(&goal, 1), m.result);
                           return m;
                         }),
                   runs);
  EXPECT_GT(found, 75);
  EXPECT_LE(found, 81);
}

TEST(Search, WholeLoadsEndAtNeighboursAndWhatNeverHoldsIsNone) {
  std::vector<Measured> runs;
  const auto closed = [](int64_t most) {
    return [most](double load) {
      Measured m = second_of(load, 1e9, 1);
      if (load > static_cast<double>(most)) m.result.errors["timeout"] = m.result.scheduled;
      return m;
    };
  };
  EXPECT_EQ(find_highest({.start = 4, .least = 1, .most = 65536, .is_whole = true, .run = closed(37)}, runs),
            37);
  runs.clear();
  EXPECT_EQ(find_highest({.start = 4, .least = 1, .most = 65536, .is_whole = true, .run = closed(0)}, runs),
            0);
  ASSERT_EQ(runs.size(), 3u);  // 4, 2, 1
  runs.clear();
  EXPECT_EQ(find_highest({.start = 4, .least = 1, .most = 64, .is_whole = true, .run = closed(1000)}, runs),
            64);
}

TEST(Search, WhatEndsItKeepsTheRunsBefore) {
  std::vector<Measured> runs;
  const auto broken = rates(10, [](double load) {
    if (load > 40) base::fail(base::ErrorCode::unavailable, "the server is gone");
    return second_of(load, 1e9, 1);
  });
  EXPECT_THROW(find_highest(broken, runs), base::Error);
  EXPECT_EQ(runs.size(), 3u);
  runs.clear();
  const auto stopped = rates(10, [](double load) {
    Measured m = second_of(load, 15, 1);
    m.result.is_interrupted = load == 15;
    return m;
  });
  EXPECT_EQ(find_highest(stopped, runs), 10);
  ASSERT_EQ(runs.size(), 3u);
  EXPECT_TRUE(runs.back().result.is_interrupted);
}

}  // namespace
}  // namespace trireme::load
