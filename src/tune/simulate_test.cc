// The simulation against what queueing theory says of the same queues.
#include "tune/simulate.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/rng.h"

namespace trireme::tune {
namespace {

ServiceTimes fixed_ns(std::function<double(int64_t rows)> time) {
  return {.usual_ns = [time = std::move(time)](size_t, int64_t rows, int) { return time(rows); }};
}

Traffic poisson(double rate, int64_t requests = 200'000) {
  return {.rate = rate, .requests = requests, .warm_up = 2'000};
}

/// Takes what waits, up to `rows`, at once.
Batching at_most(int64_t rows, int instances = 1, std::vector<int64_t> buckets = {}) {
  Batching batching;
  batching.limits.max_rows = rows;
  batching.limits.instances = instances;
  batching.row_buckets = std::move(buckets);
  batching.runs_whole = true;
  return batching;
}
Batching singly(int instances) { return at_most(1, instances); }

/// M/D/1: the mean wait is rho s / (2 (1 - rho)) (Pollaczek and Khinchine).
TEST(Simulate, WaitsAsOneServerOfConstantTime) {
  constexpr double kService = 1e-3;
  for (double rho : {0.3, 0.6, 0.8, 0.9}) {
    const Simulated got =
        simulate(singly(1), fixed_ns([](int64_t) { return kService * 1e9; }), poisson(rho / kService));
    const double expected = kService + rho * kService / (2 * (1 - rho));
    EXPECT_NEAR(got.latency.mean() * 1e-9 / expected, 1, rho > 0.7 ? 0.05 : 0.02) << rho;
    EXPECT_NEAR(got.busy, rho, 0.01);
    EXPECT_NEAR(got.throughput * kService / rho, 1, 0.01);
  }
}

/// M/M/2: with offered load a, the chance to wait is Erlang's C; the mean wait C s / (2 - a).
TEST(Simulate, WaitsAsTwoServersOfExponentialTime) {
  constexpr double kService = 1e-3, kLoad = 1.5;
  ServiceTimes times = fixed_ns([](int64_t) { return kService * 1e9; });
  base::Rng random(5);
  for (int i = 0; i < 100'000; ++i) times.ratios.push_back(random.exponential(1));
  const double c = kLoad * kLoad / 2 * 2 / (2 - kLoad);
  const double chance = c / (1 + kLoad + c);
  const Simulated got = simulate(singly(2), times, poisson(kLoad / kService));
  EXPECT_NEAR(got.latency.mean() * 1e-9 / (kService + chance * kService / (2 - kLoad)), 1, 0.03);
}

/// Mean time in a queue whose server takes all that wait, at most `most`, for time(batch): the chain of
/// requests left at the starts of services, solved by iteration; then Little's law.
double batch_queue_latency(double rate, int64_t most, const std::function<double(int64_t)>& time) {
  constexpr int64_t kStates = 400;
  // chance[n]: n wait when a service may start; 0 waits for an arrival and then serves one alone.
  std::vector<double> chance(kStates, 0), next(kStates, 0);
  chance[0] = 1;
  const auto batch_of = [&](int64_t n) { return std::clamp<int64_t>(n, 1, most); };
  for (int round = 0; round < 2'000; ++round) {
    std::fill(next.begin(), next.end(), 0);
    for (int64_t n = 0; n < kStates; ++n) {
      if (chance[static_cast<size_t>(n)] < 1e-15) continue;
      const int64_t batch = batch_of(n), left = std::max<int64_t>(0, n - batch);
      const double mean = rate * time(batch);
      double p = std::exp(-mean);
      for (int64_t k = 0; left + k < kStates; ++k) {
        next[static_cast<size_t>(left + k)] += chance[static_cast<size_t>(n)] * p;
        p *= mean / static_cast<double>(k + 1);
      }
    }
    chance.swap(next);
  }
  double in_system = 0, cycle = 0;  // request-seconds and seconds of a cycle
  for (int64_t n = 0; n < kStates; ++n) {
    const double p = chance[static_cast<size_t>(n)];
    const int64_t batch = batch_of(n);
    const double s = time(batch);
    in_system += p * (static_cast<double>(std::max<int64_t>(n, 1)) * s + rate * s * s / 2);
    cycle += p * (s + (n == 0 ? 1 / rate : 0));
  }
  return in_system / cycle / rate;
}

TEST(Simulate, BatchesWaitAsTheirMarkovChainSays) {
  const auto time = [](int64_t rows) { return 2e-3 + 0.5e-3 * static_cast<double>(rows); };
  for (int64_t most : {4, 32}) {
    const double capacity = static_cast<double>(most) / time(most);
    for (double share : {0.3, 0.7, 0.9}) {
      const Batching batching = at_most(most);
      const Simulated got = simulate(batching, fixed_ns([&](int64_t rows) { return time(rows) * 1e9; }),
                                     poisson(share * capacity));
      const double expected = batch_queue_latency(share * capacity, most, time);
      EXPECT_NEAR(got.latency.mean() * 1e-9 / expected, 1, 0.04) << most << " rows at " << share;
    }
  }
}

TEST(Simulate, ClosedLoopSaturatesAtFullBatches) {
  const Batching batching = at_most(8, 2, {1, 2, 4, 8});
  const ServiceTimes times = fixed_ns([](int64_t rows) { return 1e6 + 1e6 * static_cast<double>(rows); });
  const Simulated full = simulate(batching, times, {.clients = 64});
  EXPECT_NEAR(full.throughput, 2 * 8 / 9e-3, 20);
  EXPECT_NEAR(full.mean_batch, 8, 0.1);
  // Little: 64 in flight at that throughput.
  EXPECT_NEAR(full.latency.mean() * 1e-9 * full.throughput, 64, 1);
  // One client: a batch of one, nobody waits; 2 ms and the way.
  ServiceTimes far = times;
  far.overhead_ns = 1e6;
  const Simulated one = simulate(batching, far, {.clients = 1, .requests = 200});
  EXPECT_NEAR(one.latency.mean() / 3e6, 1, 0.01);
  EXPECT_NEAR(one.throughput, 1 / 3e-3, 4);
}

/// Buckets cost what they pad to; a wider window gathers more; groups do not share batches.
TEST(Simulate, PadsWaitsAndKeepsGroupsApart) {
  const ServiceTimes times = fixed_ns([](int64_t rows) { return 1e6 * static_cast<double>(rows); });
  Batching batching = at_most(8, 1, {8});
  EXPECT_NEAR(simulate(batching, times, {.clients = 1, .requests = 100}).latency.mean(), 8e6, 1e4);
  const ServiceTimes flat = fixed_ns([](int64_t) { return 4e6; });
  batching.row_buckets.clear();
  batching.limits.window_ns = 20'000'000;
  const Simulated patient = simulate(batching, flat, poisson(400, 20'000));
  batching.limits.window_ns = 0;
  const Simulated hasty = simulate(batching, flat, poisson(400, 20'000));
  EXPECT_GT(patient.mean_batch, 1.5 * hasty.mean_batch);
  EXPECT_GT(patient.latency.mean(), hasty.latency.mean());
  Traffic mixed = poisson(400, 20'000);
  mixed.group_shares = {1, 1, 1, 1};
  EXPECT_LT(simulate(batching, flat, mixed).mean_batch, hasty.mean_batch);
}

/// As the server's own batches do (decision 0032): a curve on which batches save little, at 80 % of what it
/// can carry, ends in small batches, and a device that is idle below 16 rows still gets its 16.
TEST(Simulate, BatchesEndWhereRowsGetNoCheaper) {
  Batching batching = at_most(32, 1, {1, 2, 3, 4, 6, 8, 12, 16, 24, 32});
  batching.is_window_adaptive = true;
  const ServiceTimes encoder =
      fixed_ns([](int64_t rows) { return 2.2e6 + 1.68e6 * static_cast<double>(rows); });
  const Simulated whole = simulate(batching, encoder, poisson(458, 50'000));
  batching.runs_whole = false;
  const Simulated ended = simulate(batching, encoder, poisson(458, 50'000));
  EXPECT_GT(whole.mean_batch, 1.3 * ended.mean_batch);
  EXPECT_LT(ended.latency.quantile(0.99), whole.latency.quantile(0.99) * 2 / 3);
  const ServiceTimes idle = fixed_ns([](int64_t rows) { return rows <= 16 ? 8e6 : 16e6; });
  const Simulated full = simulate(batching, idle, {.clients = 64});
  EXPECT_GT(full.mean_batch, 15);
}

TEST(Simulate, GoalsEndARunThatCannotMeetThem) {
  const ServiceTimes times = fixed_ns([](int64_t) { return 1e6; });
  const std::vector<LatencyGoal> goals{{0.99, 5'000'000}};
  EXPECT_TRUE(simulate(singly(1), times, poisson(500, 20'000), goals).meets(goals));
  const Simulated over = simulate(singly(1), times, poisson(1'200, 20'000), goals);
  EXPECT_TRUE(over.is_cut_short);
  EXPECT_FALSE(over.meets(goals));
  EXPECT_LT(over.latency.count(), 5'000);
  // The same seed: the same answer to the nanosecond.
  EXPECT_EQ(simulate(singly(1), times, poisson(500, 20'000)).latency.sum(),
            simulate(singly(1), times, poisson(500, 20'000)).latency.sum());
}

}  // namespace
}  // namespace trireme::tune
