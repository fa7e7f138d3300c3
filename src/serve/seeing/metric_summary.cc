// Quantiles of the recent observations of a histogram.
#include "serve/seeing/metric_summary.h"

#include <cmath>

#include "serve/seeing/metrics.h"

namespace trireme::serve {
namespace {

constexpr int64_t kSummaryWindowNs = 60 * base::kNsPerSecond;
constexpr int64_t kBetweenLooksNs = 5 * base::kNsPerSecond;  ///< scrapes may come more often

}  // namespace

double bucket_quantile(const std::vector<double>& bounds, const std::vector<uint64_t>& counts, double q) {
  uint64_t total = 0;
  for (const uint64_t n : counts) total += n;
  if (total == 0 || bounds.empty()) return NAN;
  const double rank = q * static_cast<double>(total);
  double before = 0;
  for (size_t i = 0; i < bounds.size(); ++i) {
    const double here = static_cast<double>(counts[i]);
    if (here > 0 && before + here >= rank) {
      const double low = i == 0 ? 0 : bounds[i - 1];
      return low + (bounds[i] - low) * std::max(0.0, rank - before) / here;
    }
    before += here;
  }
  return bounds.back();
}

std::vector<double> MetricSummary::read() {
  Look now{clock_.now_ns(), {}};
  for (size_t i = 0; i <= histogram_.bounds().size(); ++i) now.counts.push_back(histogram_.in_bucket(i));
  std::vector<uint64_t> recent = now.counts;
  looks_.with([&](std::deque<Look>& looks) {
    // Of the samples before the window, only the last is needed: it holds the counts at the window's start.
    while (looks.size() > 1 && now.at_ns - looks[1].at_ns >= kSummaryWindowNs) looks.pop_front();
    if (!looks.empty()) {
      for (size_t i = 0; i < recent.size(); ++i) recent[i] -= std::min(recent[i], looks.front().counts[i]);
    }
    if (looks.empty() || now.at_ns - looks.back().at_ns >= kBetweenLooksNs) looks.push_back(std::move(now));
  });
  std::vector<double> values;
  for (const double q : kQuantiles) values.push_back(bucket_quantile(histogram_.bounds(), recent, q));
  return values;
}

}  // namespace trireme::serve
