// Tests the queue: order, bounds, closing, deadlines, and that many threads together lose no item.
#include "base/threads/bounded_queue.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "base/clock.h"

namespace trireme::base {
namespace {

TEST(BoundedQueue, KeepsOrderAndBound) {
  BoundedQueue<std::unique_ptr<int>> queue(2);
  EXPECT_EQ(queue.try_push(std::make_unique<int>(1)), PushResult::ok);
  EXPECT_EQ(queue.try_push(std::make_unique<int>(2)), PushResult::ok);
  auto third = std::make_unique<int>(3);
  EXPECT_EQ(queue.try_push(std::move(third)), PushResult::full);
  ASSERT_NE(third, nullptr);  // a refused item stays with its producer
  EXPECT_EQ(**queue.try_pop(), 1);
  EXPECT_EQ(queue.try_push(std::move(third)), PushResult::ok);
  queue.close();
  EXPECT_EQ(queue.try_push(std::make_unique<int>(4)), PushResult::closed);
  EXPECT_EQ(**queue.pop(), 2);
  EXPECT_EQ(**queue.pop(), 3);
  EXPECT_FALSE(queue.pop().has_value());
}

TEST(BoundedQueue, PopKeepsItsDeadline) {
  SystemClock clock;
  BoundedQueue<int> queue(1);
  const int64_t start = clock.now_ns();
  EXPECT_FALSE(queue.pop_until(start + 5 * kNsPerMs).has_value());
  EXPECT_GE(clock.now_ns(), start + 5 * kNsPerMs);
  queue.push(1);
  EXPECT_EQ(queue.pop_until(start), 1);  // an item already queued is returned even after the deadline
}

TEST(BoundedQueue, ManyThreadsLoseNothing) {
  BoundedQueue<int> queue(7);
  constexpr int kProducers = 3, kItems = 5000;
  std::atomic<int64_t> sum{0};
  std::atomic<int> count{0};
  std::vector<std::thread> producers, consumers;
  for (int c = 0; c < 3; ++c) {
    consumers.emplace_back([&] {
      while (const std::optional<int> item = queue.pop()) sum += *item, ++count;
    });
  }
  for (int p = 0; p < kProducers; ++p) {
    producers.emplace_back([&] {
      for (int i = 1; i <= kItems; ++i) ASSERT_EQ(queue.push(int{i}), PushResult::ok);
    });
  }
  for (std::thread& t : producers) t.join();
  queue.close();
  for (std::thread& t : consumers) t.join();
  EXPECT_EQ(count, kProducers * kItems);
  EXPECT_EQ(sum, int64_t{kProducers} * kItems * (kItems + 1) / 2);
}

}  // namespace
}  // namespace trireme::base
