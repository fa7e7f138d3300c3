// The order in which requests for texts go.
#include "sched/text/token_queue.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "base/rng.h"

namespace trireme::sched {
namespace {

TokenQueue::Entry entry(int64_t number, Standing standing = {}) {
  TokenQueue::Entry e;
  e.number = number;
  e.request.prompt = {1};
  e.standing = standing;
  return e;
}

TEST(TokenQueue, PriorityThenArrival) {
  TokenQueue queue;
  queue.push(entry(0, {.priority = 5}));
  queue.push(entry(1, {.priority = 2}));
  queue.push(entry(2, {.priority = 5}));
  queue.push(entry(3, {.priority = 2}));
  queue.push(entry(4, {.priority = 5, .tenant = 1}));
  EXPECT_EQ(queue.size_of(5), 3u);
  EXPECT_EQ(queue.size_of(2), 2u);
  EXPECT_EQ(queue.size_of(3), 0u);
  queue.remove(4);
  std::vector<int64_t> order;
  while (!queue.empty()) order.push_back(queue.pop().number);
  EXPECT_EQ(queue.size_of(5), 0u);
  EXPECT_EQ(order, (std::vector<int64_t>{1, 3, 0, 2}));
  EXPECT_EQ(queue.first(), nullptr);
}

TEST(TokenQueue, WhoWasPutBackGoesBeforeWhoCameLater) {
  TokenQueue queue;
  queue.push(entry(4));
  queue.push(entry(7));
  TokenQueue::Entry back = entry(2);
  back.has_begun = true;
  queue.push(std::move(back));
  EXPECT_EQ(queue.first()->number, 2);
}

/// Of two tenants that always have work waiting each is given tokens by its weight.
TEST(TokenQueue, SharesFollowWeights) {
  TokenQueue queue;
  const Standing tenants[] = {{.tenant = 1, .weight = 1}, {.tenant = 2, .weight = 3}};
  int64_t number = 0;
  for (const Standing& t : tenants) {
    queue.push(entry(number++, t));
    queue.push(entry(number++, t));
  }
  base::Rng rng(3);
  std::map<uint32_t, double> had;
  for (int i = 0; i < 4000; ++i) {
    const TokenQueue::Entry next = queue.pop();
    const double tokens = 1 + rng() % 50;
    queue.charge(next.standing, tokens);
    had[next.standing.tenant] += tokens;
    queue.push(entry(number++, next.standing));
  }
  EXPECT_NEAR(had[2] / had[1], 3, 0.05);
}

/// Who was idle saves nothing up: it gets its share from then on, and not what it could have had before.
TEST(TokenQueue, IdleTenantsSaveNothing) {
  TokenQueue queue;
  int64_t number = 0;
  queue.push(entry(number++, {.tenant = 1}));
  for (int i = 0; i < 100; ++i) {
    const TokenQueue::Entry next = queue.pop();
    queue.push(entry(number++, next.standing));
    queue.charge(next.standing, 10);
  }
  for (int i = 0; i < 10; ++i) queue.push(entry(number++, {.tenant = 2}));
  int of_second = 0;
  for (int i = 0; i < 10; ++i) {
    const TokenQueue::Entry next = queue.pop();
    of_second += next.standing.tenant == 2;
    queue.charge(next.standing, 10);
    if (next.standing.tenant == 1) queue.push(entry(number++, next.standing));
  }
  EXPECT_EQ(of_second, 5);
}

/// Who worked alone owes nothing to who comes later, also where nobody waited when he came.
TEST(TokenQueue, WorkThatNobodyElseWantedIsNotHeldAgainstAnybody) {
  TokenQueue queue;
  int64_t number = 0;
  for (int i = 0; i < 100; ++i) {
    queue.push(entry(number++, {.tenant = 1}));
    const TokenQueue::Entry next = queue.pop();
    queue.charge(next.standing, 10);
  }
  for (int i = 0; i < 10; ++i)
    queue.push(entry(number++, {.tenant = 2}));  // the queue is empty before the first
  for (int i = 0; i < 10; ++i) queue.push(entry(number++, {.tenant = 1}));
  int of_first = 0;
  for (int i = 0; i < 10; ++i) {
    const TokenQueue::Entry next = queue.pop();
    of_first += next.standing.tenant == 1;
    queue.charge(next.standing, 10);
  }
  EXPECT_EQ(of_first, 5);
}

TEST(TokenQueue, DeadlinesAndRemoval) {
  TokenQueue queue;
  queue.push(entry(0, {.deadline_ns = 50}));
  queue.push(entry(1, {.deadline_ns = 20}));
  queue.push(entry(2));
  TokenQueue::Entry back = entry(3, {.deadline_ns = 10});
  back.has_begun = true;  // its answer has begun: it is not cut off
  queue.push(std::move(back));
  EXPECT_EQ(queue.remove_expired(20), -1);
  EXPECT_EQ(queue.remove_expired(21), 1);
  EXPECT_EQ(queue.remove_expired(21), -1);
  EXPECT_TRUE(queue.remove(2));
  EXPECT_FALSE(queue.remove(2));
  EXPECT_EQ(queue.size(), 2u);
  EXPECT_EQ(queue.remove_expired(100), 0);
  EXPECT_EQ(queue.pop().number, 3);
}

/// Against a list that is searched: random pushes, removals and pops.
TEST(TokenQueue, AgreesWithAListThatIsSearched) {
  base::Rng rng(11);
  TokenQueue queue;
  std::map<std::pair<uint32_t, int64_t>, int64_t> list;  // by priority and number
  std::set<int64_t> numbers;
  for (int64_t i = 0; i < 3000; ++i) {
    const uint32_t what = rng() % 4;
    if (what < 2) {
      const uint32_t priority = rng() % 3;
      queue.push(entry(i, {.priority = priority}));
      list[{priority, i}] = i;
      numbers.insert(i);
    } else if (what == 2 && !numbers.empty()) {
      auto at = numbers.begin();
      std::advance(at, rng() % numbers.size());
      EXPECT_TRUE(queue.remove(*at));
      std::erase_if(list, [&](const auto& item) { return item.second == *at; });
      numbers.erase(at);
    } else if (!list.empty()) {
      const int64_t number = queue.pop().number;
      EXPECT_EQ(number, list.begin()->second);
      list.erase(list.begin());
      numbers.erase(number);
    }
    ASSERT_EQ(queue.size(), list.size());
  }
}

}  // namespace
}  // namespace trireme::sched
