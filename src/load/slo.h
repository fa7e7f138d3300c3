// Service level goals of a load test: `p99=50ms`, `errors=0.1%`, `throughput=100`, and whether a result meets
// them.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "load/result.h"

namespace trireme::load {

struct Slo {
  enum class Kind { quantile, first, part, mean, max, errors, throughput };
  std::string text;  // as given
  Kind kind = Kind::quantile;
  double quantile = 0;  // 0.99; first: of the time to a stream's first part; part: of that between parts
  double bound = 0;     // ns, share of requests, or requests a second

  /// Throws invalid_argument for another form.
  static Slo parse(std::string_view text);
};

struct SloOutcome {
  Slo slo;
  double measured = 0;  // in the unit of `bound`; infinite if a failed request decides it
  bool met = false;
};

/// Failed requests count as infinitely late in quantiles, and break every `mean` and `max` goal.
std::vector<SloOutcome> judge(std::span<const Slo> slos, const LoadResult& result);
bool all_met(const std::vector<SloOutcome>& outcomes);
/// "p99=50ms: 12.3 ms, met"
std::string to_string(const SloOutcome& outcome);

}  // namespace trireme::load
