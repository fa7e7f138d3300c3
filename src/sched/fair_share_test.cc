// Tests fair share under a fake clock: a flood does not raise others' latency beyond their share, weights
// hold, unused time is not saved up, and no work is lost. Policy and shares are real, batches are simulated.
#include "sched/policy/fair_share.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

#include "base/clock.h"
#include "sched/waiting_queue.h"

namespace trireme::sched {
namespace {

using base::kNsPerMs;
using base::kNsPerSecond;

constexpr int64_t kSharedRows = 8;
/// 2 ms plus 1 ms per row: 800 rows per second in full batches.
int64_t batch_ns(int64_t rows) { return (2 + rows) * kNsPerMs; }

struct Tenant {
  double rate = 0;  ///< requests a second
  double weight = 1;
  int64_t from_ns = 0;
  uint32_t priority = 0;
};

struct Seen {
  std::vector<double> latency_ms;
  uint64_t served = 0, served_early = 0;
  double p99() {
    std::sort(latency_ms.begin(), latency_ms.end());
    return latency_ms.empty() ? 0 : latency_ms[latency_ms.size() * 99 / 100];
  }
};

uint32_t greediest(const std::vector<Waiting>& list, const Waiting& also) {
  WaitingQueue queue(true);
  for (const Waiting& w : list) queue.push({}, w);
  return queue.greediest(also);
}

/// Evicts a request as the scheduler does if the queue is full.
bool make_room(std::vector<Waiting>& queue, const Waiting& waiting) {
  const uint32_t tenant = greediest(queue, waiting);
  if (tenant == waiting.tenant) return false;
  const auto newest =
      std::find_if(queue.rbegin(), queue.rend(), [&](const Waiting& w) { return w.tenant == tenant; });
  queue.erase(std::next(newest).base());
  return true;
}

constexpr size_t kSharedQueue = 200;

/// Poisson arrivals of each tenant, a queue shared as in the scheduler, and one instance.
std::map<uint32_t, Seen> simulate(const std::vector<Tenant>& tenants, bool is_fair, int64_t seconds = 20) {
  std::mt19937_64 random(5);
  std::vector<Waiting> queue;
  std::vector<int64_t> next_ns;
  for (const Tenant& t : tenants) next_ns.push_back(t.from_ns);
  std::map<uint32_t, Seen> seen;
  FairShare shares;
  base::FakeClock clock;
  int64_t free_ns = 0;
  while (clock.now_ns() < seconds * kNsPerSecond) {
    for (uint32_t t = 0; t < tenants.size(); ++t) {
      while (tenants[t].rate > 0 && next_ns[t] <= clock.now_ns()) {
        const auto same =
            std::count_if(queue.begin(), queue.end(), [t](const Waiting& w) { return w.tenant == t; });
        const Waiting waiting{.enqueued_ns = next_ns[t],
                              .priority = tenants[t].priority,
                              .tenant = t,
                              .weight = tenants[t].weight,
                              .cost_ns = static_cast<double>(batch_ns(kSharedRows)) / kSharedRows};
        if (queue.size() < kSharedQueue || (is_fair && make_room(queue, waiting))) {
          if (is_fair) shares.join(t, static_cast<size_t>(same));
          queue.push_back(waiting);
        }
        std::exponential_distribution<double> gap(tenants[t].rate);
        next_ns[t] += static_cast<int64_t>(gap(random) * 1e9);
      }
    }
    int64_t wake_ns = *std::min_element(next_ns.begin(), next_ns.end());
    if (free_ns <= clock.now_ns() && !queue.empty()) {
      if (is_fair) shares.tag(queue);
      const Decision d = decide(queue, clock.now_ns(), {.max_rows = kSharedRows});
      free_ns = clock.now_ns() + batch_ns(static_cast<int64_t>(d.take.size()));
      std::vector<bool> leaves(queue.size(), false);
      for (size_t i : d.take) {
        Seen& s = seen[queue[i].tenant];
        s.latency_ms.push_back(static_cast<double>(free_ns - queue[i].enqueued_ns) / kNsPerMs);
        ++s.served;
        if (free_ns < seconds * kNsPerSecond / 2) ++s.served_early;
        if (is_fair) shares.run(queue[i], i == d.take[0]);
        leaves[i] = true;
      }
      size_t index = 0;
      std::erase_if(queue, [&](const Waiting&) { return leaves[index++]; });
    }
    if (free_ns > clock.now_ns()) wake_ns = std::min(wake_ns, free_ns);
    clock.sleep_until(std::max(wake_ns, clock.now_ns() + 1));
  }
  return seen;
}

TEST(FairShare, AFloodDoesNotRaiseAnothersLatency) {
  const Tenant modest{.rate = 100}, flood{.rate = 2500};
  const double alone = simulate({modest}, true)[0].p99();
  auto fair = simulate({modest, flood}, true), unfair = simulate({modest, flood}, false);
  std::printf("p99 of the modest tenant: alone %.1f ms, beside a flood %.1f ms, without shares %.0f ms\n",
              alone, fair[0].p99(), unfair[0].p99());
  // A request may have to wait for the running batch, and then goes in the next.
  EXPECT_LE(fair[0].p99(), 2.0 * static_cast<double>(batch_ns(kSharedRows)) / kNsPerMs + 0.5);
  EXPECT_GT(unfair[0].p99(), 5 * fair[0].p99());
  EXPECT_NEAR(static_cast<double>(fair[0].served), 100 * 20, 150);  // none of its requests is refused
  // Fairness never leaves the instance idle: as much work is done as without it.
  EXPECT_NEAR(static_cast<double>(fair[0].served + fair[1].served),
              static_cast<double>(unfair[0].served + unfair[1].served), 0.02 * 16000);
}

TEST(FairShare, WeightsDivideWhatIsThere) {
  auto seen = simulate(
      {{.rate = 2000, .weight = 3}, {.rate = 2000, .weight = 1}, {.rate = 2000, .weight = 0.5}}, true);
  const double unit = static_cast<double>(seen[1].served);
  EXPECT_NEAR(static_cast<double>(seen[0].served) / unit, 3, 0.1);
  EXPECT_NEAR(static_cast<double>(seen[2].served) / unit, 0.5, 0.05);
}

TEST(FairShare, WhatOneLeavesOthersUse) {
  auto seen =
      simulate({{.rate = 2000, .weight = 1}, {.rate = 40, .weight = 1}, {.rate = 2000, .weight = 1}}, true);
  EXPECT_NEAR(static_cast<double>(seen[1].served), 40 * 20, 150);
  EXPECT_NEAR(static_cast<double>(seen[0].served), static_cast<double>(seen[2].served), 0.02 * 8000);
  EXPECT_GT(seen[0].served, 7000u);
}

TEST(FairShare, NothingIsSavedUpWhileIdle) {
  auto seen = simulate({{.rate = 2000}, {.rate = 2000, .from_ns = 10 * kNsPerSecond}}, true);
  // From its arrival on, the second tenant gets half; it is not compensated for its ten seconds of absence.
  EXPECT_NEAR(static_cast<double>(seen[0].served - seen[0].served_early), static_cast<double>(seen[1].served),
              0.05 * 4000);
}

TEST(FairShare, PriorityIsAboveShares) {
  auto seen = simulate({{.rate = 600, .priority = 0}, {.rate = 2000, .priority = 1}}, true);
  EXPECT_NEAR(static_cast<double>(seen[0].served), 600 * 20, 400);
}

TEST(FairShare, AFullQueueIsSharedToo) {
  std::vector<Waiting> queue(9, Waiting{.tenant = 1});
  queue.push_back({.tenant = 2});
  EXPECT_EQ(greediest(queue, {.tenant = 2}), 1u);
  EXPECT_EQ(greediest(queue, {.tenant = 1}), 1u);
  for (Waiting& w : queue) w.weight = w.tenant == 1 ? 100 : 1;
  EXPECT_EQ(greediest(queue, {.tenant = 2}), 2u);
}

}  // namespace
}  // namespace trireme::sched
