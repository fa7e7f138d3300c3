// What a configuration would do under a load: a discrete simulation around the server's own batch policy.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "base/report/histogram.h"
#include "sched/policy/batch_policy.h"

namespace trireme::tune {

/// Time of a batch: what was measured of it, and how it varies.
struct ServiceTimes {
  /// Usual time of a batch of `rows` (padded) of a group while `busy` instances run, this one with them.
  std::function<double(size_t group, int64_t rows, int busy)> usual_ns;
  /// Measured times over their usual one; each batch draws one. Empty: always 1.
  std::vector<double> ratios = {};
  /// Between client and queue and back, without waiting: wire, parsing, threads woken.
  double overhead_ns = 0;
};

/// The part of a configuration that the scheduler sees.
struct Batching {
  sched::BatchLimits limits;         ///< its instances count
  bool is_window_adaptive = false;   ///< as sched::SchedulerOptions has it
  bool runs_whole = false;           ///< likewise
  std::vector<int64_t> row_buckets;  ///< a batch is filled up to one of these; empty: exact
  size_t max_queue = 1024;
};

/// Poisson arrivals at `rate`, or `clients` that each send again once they have their answer.
struct Traffic {
  double rate = 0;                         ///< requests a second
  int64_t clients = 0;                     ///< closed loop
  std::vector<double> group_shares = {1};  ///< how often a request is of each group; any sum
  int64_t rows = 1;                        ///< of a request
  int64_t requests = 10'000;               ///< counted ones
  int64_t warm_up = 500;                   ///< before them, not counted
  uint64_t seed = 1;
};

/// "A share `quantile` of the answers within `bound_ns`".
struct LatencyGoal {
  double quantile = 0.99;
  int64_t bound_ns = 0;
};

struct Simulated {
  base::Histogram latency;    ///< ns, of counted requests that were answered
  int64_t refused = 0;        ///< counted ones that found the queue full
  double throughput = 0;      ///< answers a second
  double mean_batch = 0;      ///< requests of a batch
  double service_ns = 0;      ///< time of the batch that a request is in, mean over requests
  double busy = 0;            ///< share of time that an instance works, mean over instances
  bool is_cut_short = false;  ///< a goal was out of reach before the end
  bool meets(const std::vector<LatencyGoal>& goals) const;
};

/// Runs the traffic through decide() and the window's rule under a clock of its own. Ends early once so many
/// requests were late that a goal cannot be met any more. The same seed gives the same arrivals for every
/// configuration.
Simulated simulate(const Batching& batching, const ServiceTimes& times, const Traffic& traffic,
                   const std::vector<LatencyGoal>& goals = {});

}  // namespace trireme::tune
