// What something usually takes, learned from each time that it was done.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace trireme::sched {

/// A mean that follows a change of load within a few times, and the usual distance from it.
struct SmoothedTime {
  double mean_ns = 0;  ///< 0: never done
  double spread_ns = 0;

  bool is_known() const { return mean_ns > 0; }
  double with_spread_ns() const { return mean_ns + spread_ns; }
  /// It took `ns`, which counts for 1 / `inertia`; the distance, for half of that. A long one is capped near
  /// twice the mean, or one stall would look like seconds of load.
  void add(int64_t ns, double inertia) {
    const auto value = static_cast<double>(std::max<int64_t>(1, ns));
    if (!is_known()) {
      mean_ns = value;
      return;
    }
    const double seen = std::min(value, 2 * mean_ns + 1e6);
    spread_ns += (std::abs(seen - mean_ns) - spread_ns) / (2 * inertia);
    mean_ns += (seen - mean_ns) / inertia;
  }
};

}  // namespace trireme::sched
