// Sweeps: which loads are tried, and when a measurement has settled.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "load/run/generator.h"

namespace trireme::load {

/// The points of a sweep: closed loops at each concurrency, or open loops at each rate.
struct Sweep {
  bool rates = false;
  std::vector<double> points;

  /// "1,2,8", "concurrency=1:64:2x" (doubled from 1 to 64), "rate=100:500:100" (in steps of 100); start:end
  /// alone steps by 1. The end is included if a step meets it. Throws invalid_argument for other texts.
  static Sweep parse(std::string_view text);
};

/// Tells when a load has settled, as perf_analyzer does: the last three windows' throughput and mean latency
/// each lie within a share of their average.
class Stability {
 public:
  static constexpr size_t kWindows = 3;
  static constexpr size_t kMostTrials = 10;

  /// `share`: 0.1 is 10 %.
  explicit Stability(double share) : share_(share) {}
  void add(double throughput, double latency_ns);
  bool stable() const;
  /// Stable, or out of trials.
  bool done() const { return stable() || windows_.size() >= kMostTrials; }
  size_t trials() const { return windows_.size(); }

 private:
  struct Window {
    double throughput, latency_ns;
  };
  double share_;
  std::vector<Window> windows_;
};

/// A load in windows until they agree, or were ten: the last three are the measurement.
struct Settled {
  LoadResult result;
  int64_t trials = 0;
  bool is_stable = false;
};
/// `plan` has no pacer; its duration is that of a window. `share`: as of Stability.
Settled run_until_stable(const LoadPlan& plan, double share);

}  // namespace trireme::load
