// Quantiles of a histogram's recent observations, for dashboards that ask for summaries.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "base/clock.h"
#include "base/guarded.h"

namespace trireme::serve {

class MetricHistogram;

/// The value below which a share `q` of the observations lies, interpolated within its bucket; NaN without
/// any. What lies above all bounds counts as the last bound. `counts` has one entry more than `bounds`.
double bucket_quantile(const std::vector<double>& bounds, const std::vector<uint64_t>& counts, double q);

/// Looks at what a histogram saw since the first look within the last minute (or the last look before it).
/// The histogram and the clock outlive it. Any thread.
class MetricSummary {
 public:
  MetricSummary(const MetricHistogram& histogram, const base::Clock& clock)
      : histogram_(histogram), clock_(clock) {}

  static constexpr double kQuantiles[] = {0.5, 0.9, 0.95, 0.99, 0.999};
  /// One value for each of kQuantiles, in the histogram's unit.
  std::vector<double> read();
  const MetricHistogram& histogram() const { return histogram_; }

 private:
  struct Look {
    int64_t at_ns = 0;
    std::vector<uint64_t> counts;
  };
  const MetricHistogram& histogram_;
  const base::Clock& clock_;
  base::Guarded<std::deque<Look>> looks_;  ///< oldest first
};

}  // namespace trireme::serve
