// Tests the batching policy: windows, limits, groups, priorities, deadlines; no threads, no clock.
#include "sched/batch_policy.h"

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

TEST(BatchPolicy, StartsEarlyEnoughForTheDeadline) {
  const std::vector<Waiting> queue{{.enqueued_ns = 0, .deadline_ns = 900}};
  const BatchLimits limits{.max_rows = 8, .window_ns = 10000};
  EXPECT_EQ(decide(queue, 100, limits, 300).wake_ns, 600);
  EXPECT_EQ(decide(queue, 600, limits, 300).take, (Indices{0}));
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
