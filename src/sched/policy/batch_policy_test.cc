// Tests the batching policy: windows, limits, groups, priorities, deadlines; no threads, no clock.
#include "sched/policy/batch_policy.h"

#include <gtest/gtest.h>

namespace trireme::sched {
namespace {

using Indices = std::vector<size_t>;

TEST(BatchPolicy, WaitsForTheWindowThenTakesAll) {
  const std::vector<Waiting> queue{{.enqueued_ns = 100}, {.enqueued_ns = 150}};
  const BatchLimits limits{.max_rows = 8, .window_ns = 1000};
  const Decision early = decide(queue, 200, limits);
  EXPECT_TRUE(early.take.empty());
  EXPECT_EQ(early.wake_ns, 1100);
  EXPECT_EQ(decide(queue, 1100, limits).take, (Indices{0, 1}));
}

TEST(BatchPolicy, GoesAtOnceWhenFullOrPreferred) {
  const std::vector<Waiting> queue{
      {.rows = 2, .enqueued_ns = 0}, {.rows = 2, .enqueued_ns = 0}, {.rows = 3, .enqueued_ns = 0}};
  EXPECT_EQ(decide(queue, 1, {.max_rows = 6, .window_ns = 1000}).take,
            (Indices{0, 1}));  // the third does not fit
  EXPECT_EQ(decide(queue, 1, {.max_rows = 64, .window_ns = 1000, .preferred = {7}}).take, (Indices{0, 1, 2}));
}

TEST(BatchPolicy, ALaterSmallRequestDoesNotOvertakeALargeOne) {
  const std::vector<Waiting> queue{{.rows = 3}, {.rows = 4}, {.rows = 1}};
  EXPECT_EQ(decide(queue, 0, {.max_rows = 4}).take, (Indices{0}));
}

TEST(BatchPolicy, OnlyOneGroupPerBatch) {
  const std::vector<Waiting> queue{{.group = 1}, {.group = 2}, {.group = 1}};
  EXPECT_EQ(decide(queue, 0, {.max_rows = 8}).take, (Indices{0, 2}));
}

TEST(BatchPolicy, PriorityGoesFirst) {
  const std::vector<Waiting> queue{{.priority = 2}, {.priority = 1}, {.priority = 2}};
  EXPECT_EQ(decide(queue, 0, {.max_rows = 2}).take, (Indices{1, 0}));
}

TEST(BatchPolicy, ExpiredRequestsAreRefusedNotRun) {
  const std::vector<Waiting> queue{{.deadline_ns = 50}, {.deadline_ns = 500}};
  const Decision d = decide(queue, 60, {.max_rows = 8});
  EXPECT_EQ(d.expired, (Indices{0}));
  EXPECT_EQ(d.take, (Indices{1}));
}

/// 100 ns per batch plus 50 ns per row.
int64_t cost(uint64_t, int64_t rows) { return 100 + 50 * rows; }

TEST(BatchPolicy, StartsEarlyEnoughForTheDeadline) {
  const std::vector<Waiting> queue{{.enqueued_ns = 0, .finish_ns = 900}};
  const BatchLimits limits{.max_rows = 8, .window_ns = 10000};
  EXPECT_EQ(decide(queue, 100, limits, cost).wake_ns, 750);
  EXPECT_EQ(decide(queue, 750, limits, cost).take, (Indices{0}));
  EXPECT_EQ(decide(queue, 751, limits, cost).hopeless, (Indices{0}));
}

TEST(BatchPolicy, ATrialIsNotHopelessBeforeItsTime) {
  const std::vector<Waiting> queue{{.finish_ns = 120, .is_trial = true}, {.finish_ns = 130}};
  const Decision d = decide(queue, 0, {.max_rows = 8, .window_ns = 10000}, cost);
  EXPECT_EQ(d.take, (Indices{0}));
  EXPECT_EQ(d.hopeless, (Indices{1}));
  EXPECT_EQ(decide(queue, 120, {.max_rows = 8}, cost).hopeless, (Indices{0, 1}));
}

TEST(BatchPolicy, TheMostUrgentGoesFirstAndShrinksTheBatch) {
  // Together they take 300 ns, late for the second; alone it takes 150 ns, and the others are still in time.
  const std::vector<Waiting> queue{{.finish_ns = 1000}, {.finish_ns = 190}, {.finish_ns = 1000}, {}};
  EXPECT_EQ(decide(queue, 0, {.max_rows = 8}, cost).take, (Indices{1}));
  EXPECT_EQ(decide(queue, 0, {.max_rows = 8}, [](uint64_t, int64_t) { return 50; }).take,
            (Indices{1, 0, 2, 3}));
}

TEST(BatchPolicy, GivesUpOneWhereAllCannotBeInTime) {
  // If the first runs alone it is in time, but then the seven others (450 ns from 150 on) are not.
  std::vector<Waiting> queue(8, {.finish_ns = 520});
  queue[0].finish_ns = 160;
  EXPECT_EQ(decide(queue, 0, {.max_rows = 8}, cost).take.size(), 7u);
}

TEST(BatchPolicy, CutsAtTheLargestPreferredSize) {
  const std::vector<Waiting> queue(7, {.enqueued_ns = 0});
  EXPECT_EQ(decide(queue, 1, {.max_rows = 8, .window_ns = 1000, .preferred = {2, 4}}).take.size(), 4u);
  EXPECT_EQ(decide(queue, 1000, {.max_rows = 8, .window_ns = 1000, .preferred = {16}}).take.size(), 7u);
}

// As in Triton: a batch that can no longer reach a preferred size does not wait for one.
TEST(BatchPolicy, PastTheLargestPreferredSizeNobodyWaits) {
  const BatchLimits limits{.max_rows = 8, .window_ns = 1000, .preferred = {2, 6}};
  EXPECT_EQ(decide(std::vector<Waiting>{{.rows = 7}}, 1, limits).take, (Indices{0}));
  EXPECT_EQ(decide(std::vector<Waiting>{{.rows = 3}, {.rows = 4}}, 1, limits).take, (Indices{0}));
  EXPECT_TRUE(decide(std::vector<Waiting>{{.rows = 4}}, 1, limits).take.empty());
  EXPECT_TRUE(decide(std::vector<Waiting>{{.rows = 3}, {.rows = 1}}, 1, limits).take.empty());
  EXPECT_EQ(decide(std::vector<Waiting>{{.rows = 3}, {.rows = 3}, {.rows = 1}}, 1, limits).take,
            (Indices{0, 1}));
  EXPECT_EQ(decide(std::vector<Waiting>{{.rows = 1}, {.rows = 1}, {.rows = 5}}, 1, limits).take,
            (Indices{0, 1}));
}

TEST(BatchPolicy, AnotherGroupEndsTheWaitWhereItIsToldTo) {
  const std::vector<Waiting> queue{{.enqueued_ns = 0, .group = 1}, {.enqueued_ns = 5, .group = 2}};
  BatchLimits limits{.max_rows = 8, .window_ns = 1000};
  EXPECT_TRUE(decide(queue, 10, limits).take.empty());
  limits.others_end_window = true;
  EXPECT_EQ(decide(queue, 10, limits).take, (Indices{0}));
  EXPECT_TRUE(decide(std::vector<Waiting>{queue[1]}, 10, limits).take.empty());
}

// An instance does not idle while another batch is full; the first request keeps waiting for its group.
TEST(BatchPolicy, AFullBatchOfAnotherGroupDoesNotWaitForTheFirst) {
  std::vector<Waiting> queue{{.rows = 1, .group = 1}, {.rows = 2, .group = 2}, {.rows = 2, .group = 2}};
  const BatchLimits limits{.max_rows = 4, .window_ns = 1000};
  EXPECT_EQ(decide(queue, 1, limits).take, (Indices{1, 2}));
  EXPECT_EQ(decide(queue, 1000, limits).take, (Indices{0}));  // its window has ended
  queue[0].priority = 1;
  for (size_t i : {1, 2}) queue[i].priority = 2;
  EXPECT_TRUE(decide(queue, 1, limits).take.empty());  // never before a higher priority
  queue[0] = {.group = 1, .finish_ns = 900};
  queue[1].priority = queue[2].priority = 0;
  EXPECT_TRUE(decide(queue, 1, limits).take.empty());  // nor before a request that is due
}

TEST(BatchPolicy, DelayedRequestsRunBehindTheOthers) {
  const std::vector<Waiting> queue{{.deadline_ns = 50, .runs_late = true}, {}, {}};
  EXPECT_EQ(decide(queue, 40, {.max_rows = 2}).take, (Indices{0, 1}));
  EXPECT_EQ(decide(queue, 60, {.max_rows = 2}).take, (Indices{1, 2}));
  EXPECT_TRUE(decide(queue, 60, {.max_rows = 2}).expired.empty());
}

TEST(BatchPolicy, AdmitsWhatCanBeInTimeAndMakesNobodyLate) {
  const BatchLimits limits{.max_rows = 8};
  const auto admitted = [&](const std::vector<Waiting>& queue, int64_t finish_ns) {
    return admits(queue, {.finish_ns = finish_ns}, 0, limits, cost);
  };
  EXPECT_TRUE(admitted({}, 200));
  EXPECT_FALSE(admitted({}, 150));                                           // an eighth is kept in reserve
  EXPECT_FALSE(admitted(std::vector<Waiting>(8, {.finish_ns = 700}), 700));  // behind a full batch of 500
  EXPECT_TRUE(admitted(std::vector<Waiting>(8, {.finish_ns = 700}), 800));
  EXPECT_FALSE(admitted(std::vector<Waiting>(16, {.finish_ns = 1130}), 200));  // the last would be late
  EXPECT_TRUE(admitted(std::vector<Waiting>(16, {.finish_ns = 1300}), 200));
  EXPECT_TRUE(admitted(std::vector<Waiting>(16, {.finish_ns = 0}), 200));
  EXPECT_TRUE(admits(std::vector<Waiting>(99), {}, 0, limits, cost));  // no due time
}

TEST(BatchPolicy, ARequestLargerThanTheLimitRunsAlone) {
  const std::vector<Waiting> queue{{.rows = 9}, {.rows = 1}};
  EXPECT_EQ(decide(queue, 0, {.max_rows = 4}).take, (Indices{0}));
}

TEST(BatchPolicy, BucketsRoundUp) {
  const std::vector<int64_t> buckets{1, 4, 16};
  EXPECT_EQ(bucket_of(buckets, 1), 1);
  EXPECT_EQ(bucket_of(buckets, 5), 16);
  EXPECT_EQ(bucket_of(buckets, 17), 17);
}

}  // namespace
}  // namespace trireme::sched
