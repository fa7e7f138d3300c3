// Tests which batch sizes the measured row prices lead to, under a fake clock and for several cost curves.
#include "sched/policy/row_prices.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <random>

#include "base/clock.h"
#include "sched/policy/test_costs.h"

namespace trireme::sched {
namespace {

using base::kNsPerMs;
using base::kNsPerSecond;

/// Milliseconds of a batch padded to `rows` rows.
using CostMs = std::function<double(int64_t rows)>;

struct PricedMachine {
  CostMs cost_ms;
  std::vector<int64_t> buckets{1, 2, 3, 4, 6, 8, 12, 16, 24, 32};
  double noise = 0.05;
  bool uses_prices = true;
  double slow_from_s = 0, slow_to_s = 0;  // all batches take five times as long then
};

/// Requests per second, or `clients` that each send again as soon as they are answered.
struct Load {
  double rate = 0;
  int clients = 0;
};

struct PricedResult {
  double p50_ms = 0, p99_ms = 0, per_second = 0, mean_rows = 0;
  int batches = 0;
};

/// One queue and one instance, real decisions and prices, batches of the true cost with noise. The first
/// seconds do not count.
PricedResult simulate(const PricedMachine& machine, const Load& load, int64_t seconds = 125) {
  RowPrices prices(machine.buckets, 32);
  base::FakeClock clock;
  std::mt19937_64 random{3}, arrivals{17};
  std::normal_distribution<double> noise{1, machine.noise};
  std::vector<Waiting> queue;
  std::vector<int64_t> latencies;
  PricedResult result;
  int64_t free_ns = 0, rows_run = 0;
  const int64_t end_ns = seconds * kNsPerSecond, counted_ns = 5 * kNsPerSecond;
  const auto gap_ns = [&] {
    return static_cast<int64_t>(std::exponential_distribution<double>(load.rate)(arrivals) * 1e9);
  };
  int64_t arrival_ns = load.rate > 0 ? gap_ns() : INT64_MAX;
  for (int i = 0; i < load.clients; ++i) queue.push_back({.enqueued_ns = 0});
  while (clock.now_ns() < end_ns) {
    const int64_t now = clock.now_ns();
    for (; arrival_ns <= now; arrival_ns += gap_ns()) queue.push_back({.enqueued_ns = arrival_ns});
    int64_t next_ns = arrival_ns;
    if (free_ns <= now && !queue.empty()) {
      BatchLimits limits{.max_rows = 32};
      if (machine.uses_prices)
        limits.worth = [&](uint64_t group, int64_t rows) { return prices.worth(group, rows, now); };
      const Decision d = decide(queue, now, limits);
      const auto rows = static_cast<int64_t>(d.take.size());
      const int64_t size = bucket_of(machine.buckets, rows);
      const double now_s = static_cast<double>(now) / kNsPerSecond;
      const double slow = now_s >= machine.slow_from_s && now_s < machine.slow_to_s ? 5 : 1;
      const auto took_ns =
          static_cast<int64_t>(slow * machine.cost_ms(size) * std::max(0.5, noise(random)) * kNsPerMs);
      free_ns = now + took_ns;
      prices.observe(0, size, took_ns, free_ns);
      for (size_t i : d.take) {
        if (now > counted_ns) latencies.push_back(free_ns - queue[i].enqueued_ns);
      }
      if (now > counted_ns) {
        ++result.batches;
        rows_run += rows;
      }
      queue.erase(queue.begin(), queue.begin() + static_cast<ptrdiff_t>(d.take.size()));
      for (size_t i = 0; load.clients > 0 && i < d.take.size(); ++i)
        queue.push_back({.enqueued_ns = free_ns});
    }
    if (free_ns > now) next_ns = std::min(next_ns, free_ns);
    clock.sleep_until(std::max(next_ns, now + 1));
  }
  std::sort(latencies.begin(), latencies.end());
  result.p50_ms = static_cast<double>(latencies.at(latencies.size() / 2)) / kNsPerMs;
  result.p99_ms = static_cast<double>(latencies.at(latencies.size() * 99 / 100)) / kNsPerMs;
  result.per_second = static_cast<double>(rows_run) * 1e9 / static_cast<double>(end_ns - counted_ns);
  result.mean_rows = static_cast<double>(rows_run) / std::max(1, result.batches);
  return result;
}

/// Gathering costs more than the model: the input of a single request is used in place.
double gathering(int64_t rows) { return rows == 1 ? 0.05 : 0.5 * static_cast<double>(rows); }

TEST(RowPrices, AtFourFifthsOfTheCapacityLatencyIsThatOfSmallBatches) {
  const std::vector<int64_t> coarse{1, 2, 4, 8, 16, 32};
  const PricedMachine before{.cost_ms = encoder_ms, .buckets = coarse, .uses_prices = false};
  const PricedMachine after{.cost_ms = encoder_ms};
  const PricedResult full_before = simulate(before, {.clients = 64}), full = simulate(after, {.clients = 64});
  const double rate = 0.8 * full_before.per_second;
  const PricedResult was = simulate(before, {.rate = rate}), is = simulate(after, {.rate = rate});
  const PricedResult coarse_is = simulate({.cost_ms = encoder_ms, .buckets = coarse}, {.rate = rate});
  std::printf(
      "saturated %.0f/s, was %.0f/s; at %.0f/s p99 %.1f ms, %.1f rows; was %.1f ms, %.1f rows; with powers "
      "of two %.1f ms\n",
      full.per_second, full_before.per_second, rate, is.p99_ms, is.mean_rows, was.p99_ms, was.mean_rows,
      coarse_is.p99_ms);
  EXPECT_GE(full.per_second, 0.97 * full_before.per_second);
  EXPECT_LE(is.p99_ms, 0.55 * was.p99_ms);
  EXPECT_LE(is.p99_ms, 60);
  EXPECT_LE(coarse_is.p99_ms, 0.7 * was.p99_ms);
}

// Prices measured while the machine was slow are measured again, however expensive they seem.
TEST(RowPrices, ASlowPhaseIsForgotten) {
  for (const int clients : {4, 16, 64}) {
    for (const double from_s : {0.0, 0.02, 0.1, 20.0}) {
      const PricedMachine slow{.cost_ms = encoder_ms, .slow_from_s = from_s, .slow_to_s = from_s + 0.4};
      const PricedResult is = simulate(slow, {.clients = clients}),
                         never = simulate({.cost_ms = encoder_ms}, {.clients = clients});
      std::printf("%d clients, slow from %.2f s: %.0f/s, %.1f rows; never slow: %.0f/s, %.1f rows\n", clients,
                  from_s, is.per_second, is.mean_rows, never.per_second, never.mean_rows);
      EXPECT_GE(is.per_second, 0.97 * never.per_second);
    }
  }
}

TEST(RowPrices, WhereBatchesGainNothingRequestsRunAlone) {
  const PricedResult is = simulate({.cost_ms = linear_ms}, {.clients = 32});
  std::printf("no gain: %.2f rows a batch\n", is.mean_rows);
  EXPECT_LT(is.mean_rows, 8);
  const PricedResult images = simulate({.cost_ms = gathering}, {.clients = 32}, 6);
  EXPECT_LT(images.mean_rows, 1.01);
}

TEST(RowPrices, WhereBatchesGainMuchTheyStayLarge) {
  const PricedResult device = simulate({.cost_ms = flat_ms}, {.clients = 32}, 20);
  EXPECT_GT(device.mean_rows, 15);
  EXPECT_GE(device.per_second, 0.97 * 16 / 8e-3);
}

/// Three runs make a size known.
void learn(RowPrices& prices, int64_t rows, double ms, int64_t now_ns = 0) {
  for (int i = 0; i < 3; ++i) prices.observe(7, rows, static_cast<int64_t>(ms * kNsPerMs), now_ns);
}

TEST(RowPrices, TriesWhatIsUnknownWhereThereIsHope) {
  RowPrices prices({1, 2, 4, 8}, 8);
  EXPECT_EQ(prices.worth(7, 8, 0).rows, 8);  // nothing is known
  learn(prices, 8, 16);
  EXPECT_EQ(prices.worth(7, 8, 0).rows, 4);
  learn(prices, 4, 8);
  EXPECT_EQ(prices.worth(7, 8, 0).rows, 2);
  learn(prices, 2, 6);  // half as much again per row: no hope for single rows
  EXPECT_EQ(prices.worth(7, 8, 0).rows, 4);
  EXPECT_EQ(prices.worth(7, 7, 0).rows, 4);
  EXPECT_EQ(prices.worth(9, 8, 0).rows, 8);  // other shapes
}

TEST(RowPrices, OfAFilledUpBatchOnlyRealRowsShareThePrice) {
  RowPrices prices({1, 2, 4, 8}, 8);
  learn(prices, 8, 8);
  learn(prices, 4, 5);
  learn(prices, 2, 3.5);
  learn(prices, 1, 2.5);
  EXPECT_EQ(prices.worth(7, 8, 0).rows, 8);
  EXPECT_EQ(prices.worth(7, 7, 0).rows, 7);  // 1.14 per row
  EXPECT_EQ(prices.worth(7, 5, 0).rows, 4);  // 1.25 per row, not 1.6
}

TEST(RowPrices, WaitingGainsWhereMoreAreCheaperOrUnknown) {
  RowPrices prices({1, 2, 4}, 4);
  EXPECT_TRUE(prices.worth(7, 1, 0).gains_by_waiting);
  learn(prices, 1, 2);
  EXPECT_TRUE(prices.worth(7, 1, 0).gains_by_waiting);
  learn(prices, 2, 4);
  EXPECT_FALSE(prices.worth(7, 1, 0).gains_by_waiting);
  learn(prices, 4, 4);
  EXPECT_TRUE(prices.worth(7, 1, 0).gains_by_waiting);
}

TEST(RowPrices, LooksAgainAtNeighboursAfterFiveSeconds) {
  RowPrices prices({1, 2, 4, 8}, 8);
  for (int64_t rows : {1, 2, 4, 8}) learn(prices, rows, static_cast<double>(2 * rows));
  EXPECT_EQ(prices.worth(7, 8, kNsPerSecond).rows, 1);
  // Now a batch of 2 costs as much as one row: one trial, two more at once, and it becomes the usual size.
  const int64_t now = 6 * kNsPerSecond;
  prices.observe(7, 1, 2 * kNsPerMs, now);
  for (int look = 0; look < 3; ++look) {
    EXPECT_EQ(prices.worth(7, 2, now).rows, 2) << look;
    prices.observe(7, 2, 2 * kNsPerMs, now);
  }
  EXPECT_EQ(prices.worth(7, 2, now).rows, 2);
  EXPECT_TRUE(prices.worth(7, 1, now).gains_by_waiting);
}

TEST(RowPrices, AStallChangesNothing) {
  RowPrices prices({1, 2}, 2);
  learn(prices, 1, 2);
  learn(prices, 2, 2.5);
  prices.observe(7, 2, kNsPerSecond, 0);
  EXPECT_EQ(prices.worth(7, 2, 0).rows, 2);
}

TEST(RowPrices, WithoutBucketsSizesCountAsTheNextPowerOfTwo) {
  RowPrices prices({}, 32);
  learn(prices, 27, 27);
  learn(prices, 14, 14);
  learn(prices, 7, 14);
  EXPECT_EQ(prices.worth(7, 27, 0).rows, 16);
}

}  // namespace
}  // namespace trireme::sched
