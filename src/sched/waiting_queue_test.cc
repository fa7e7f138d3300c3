// Tests the queue of requests: order, what the policy sees of a long queue, and who leaves late or cancelled.
#include "sched/waiting_queue.h"

#include <gtest/gtest.h>

#include <random>

#include "base/clock.h"

namespace trireme::sched {
namespace {

using base::kNsPerMs;

Request numbered(int64_t number) {
  Request r;
  r.rows = number;
  return r;
}

TEST(WaitingQueue, GoesByPriorityThenDueTimeThenArrival) {
  WaitingQueue queue(false);
  queue.push(numbered(0), {.enqueued_ns = 1, .priority = 2});
  queue.push(numbered(1), {.enqueued_ns = 2, .priority = 1});
  queue.push(numbered(2), {.enqueued_ns = 3, .priority = 1, .finish_ns = 100});
  queue.push(numbered(3), {.enqueued_ns = 2, .priority = 1});
  EXPECT_EQ(queue.of_level(1), 3u);
  std::vector<int64_t> order;
  for (const auto place : queue.view(0, 8).places) order.push_back(place->second.request.rows);
  EXPECT_EQ(order, (std::vector<int64_t>{2, 1, 3, 0}));
  queue.take(queue.view(0, 8).places[1]);
  EXPECT_EQ(queue.of_level(1), 2u);
  EXPECT_EQ(queue.size(), 3u);
}

// The policy forms the same batch from the view as from all requests that wait.
TEST(WaitingQueue, AViewHoldsTheBatchOfAllThatWait) {
  std::mt19937_64 random(3);
  for (int round = 0; round < 20; ++round) {
    WaitingQueue queue(false);
    const uint64_t groups = 1 + random() % 6;
    const size_t count = 200 + random() % 5000;
    for (size_t i = 0; i < count; ++i)
      queue.push(numbered(static_cast<int64_t>(i)), {.rows = 1 + static_cast<int64_t>(random() % 4),
                                                     .enqueued_ns = static_cast<int64_t>(i),
                                                     .priority = static_cast<uint32_t>(random() % 2),
                                                     .group = random() % groups});
    const BatchLimits limits{.max_rows = 16, .window_ns = 1'000'000'000};
    while (queue.size() > 1024) {
      const WaitingQueue::View view = queue.view(0, 16);
      const std::vector<Waiting> all = queue.all();
      const Decision some = decide(view.waiting, 1'000'000, limits), whole = decide(all, 1'000'000, limits);
      ASSERT_EQ(some.take, whole.take);
      ASSERT_LE(view.places.size(), 1024u);
      ASSERT_FALSE(some.take.empty());
      for (size_t i : some.take) queue.take(view.places[i]);
    }
  }
}

TEST(WaitingQueue, ALongQueueShowsEachTenantsFirst) {
  WaitingQueue few(true);
  for (int64_t i = 0; i < 9; ++i) few.push(numbered(i), {.enqueued_ns = i, .tenant = i < 8 ? 1u : 2u});
  EXPECT_EQ(few.view(0, 1).waiting.back().tenant, 2u);
  WaitingQueue queue(true);
  for (int64_t i = 0; i < 5000; ++i) queue.push(numbered(i), {.enqueued_ns = i, .tenant = 1});
  for (int64_t i = 0; i < 3; ++i) queue.push(numbered(i), {.enqueued_ns = 9000 + i, .tenant = 2});
  const WaitingQueue::View view = queue.view(0, 8);
  const auto modest =
      std::count_if(view.waiting.begin(), view.waiting.end(), [](const Waiting& w) { return w.tenant == 2; });
  EXPECT_EQ(modest, 3);
  EXPECT_LT(view.waiting.size(), 2100u);
  EXPECT_EQ(queue.of_tenant(1), 5000u);
  EXPECT_EQ(queue.greediest({.tenant = 2}), 1u);
  EXPECT_EQ(queue.evict(1).rows, 4999);
  EXPECT_EQ(queue.of_tenant(1), 4999u);
}

// A request that is due is seen, however many requests without due times precede it.
TEST(WaitingQueue, WithDueTimesAThousandAreSeen) {
  WaitingQueue queue(false);
  for (int64_t i = 0; i < 3000; ++i) queue.push(numbered(i), {.enqueued_ns = i});
  EXPECT_EQ(queue.view(0, 8).places.size(), 8u);
  queue.push(numbered(9), {.enqueued_ns = 3000, .finish_ns = 90'000 * kNsPerMs});
  EXPECT_EQ(queue.view(0, 8).places.size(), 1024u);
}

TEST(WaitingQueue, SweepsFindWhoIsLateOrLeftHoweverFarBack) {
  WaitingQueue queue(false);
  const auto leave = [](int64_t number) {
    Request r = numbered(number);
    r.cancelled = [] { return true; };
    return r;
  };
  for (int64_t i = 0; i < 10'000; ++i)
    queue.push(numbered(i), {.enqueued_ns = i, .deadline_ns = 500 * kNsPerMs, .group = 7});
  queue.push(numbered(1), {.enqueued_ns = 10'000, .deadline_ns = 5 * kNsPerMs});
  queue.push(numbered(2), {.enqueued_ns = 10'001, .finish_ns = 90'000 * kNsPerMs});
  queue.push(leave(3), {.enqueued_ns = 10'002});
  queue.push(numbered(4), {.enqueued_ns = 10'003, .deadline_ns = 5 * kNsPerMs, .runs_late = true});
  EXPECT_EQ(queue.next_sweep_ns(), 5 * kNsPerMs);
  WaitingQueue::Leavers leavers;
  int64_t now_ns = 5 * kNsPerMs;
  for (int i = 0; i < 6; ++i, now_ns = queue.next_sweep_ns()) queue.sweep(now_ns, leavers);
  ASSERT_EQ(leavers.expired.size(), 1u);
  EXPECT_EQ(leavers.expired[0].rows, 1);
  ASSERT_EQ(leavers.cancelled.size(), 1u);
  EXPECT_EQ(leavers.cancelled[0].rows, 3);
  EXPECT_TRUE(leavers.hopeless.empty());
  EXPECT_EQ(queue.size(), 10'002u);
  // The delayed request is the last of all, and does not expire again.
  for (now_ns = 500 * kNsPerMs; queue.size() > 2; now_ns = queue.next_sweep_ns())
    queue.sweep(now_ns, leavers);
  EXPECT_EQ(leavers.expired.size(), 10'001u);
  EXPECT_EQ(queue.view(0, 8).places.back()->second.request.rows, 4);
  for (int i = 0; i < 9; ++i) queue.sweep(90'001 * kNsPerMs, leavers);
  ASSERT_EQ(leavers.hopeless.size(), 1u);
  EXPECT_EQ(leavers.hopeless[0].rows, 2);
  EXPECT_EQ(queue.take_all().size(), 1u);
  EXPECT_EQ(queue.next_sweep_ns(), INT64_MAX);
}

TEST(WaitingQueue, OfOneInstance) {
  WaitingQueue queue(false);
  for (int i = 0; i < 6; ++i) {
    Request r = numbered(i);
    r.instance = i % 3 - 1;
    queue.push(std::move(r), {.enqueued_ns = i});
  }
  EXPECT_EQ(queue.view(0, 8).places.size(), 4u);  // two are for any instance
  EXPECT_EQ(queue.take_of_instance(1).size(), 2u);
  EXPECT_EQ(queue.size(), 4u);
}

}  // namespace
}  // namespace trireme::sched
