// Early stopping: how many queries a percentile needs before a run may call it measured.
#pragma once

#include <cstdint>
#include <span>

namespace trireme::load {

/// P[Binomial(trials, probability) <= successes], by summing the terms. trials >= successes >= 0.
double binomial_cdf(int64_t successes, int64_t trials, double probability);

/// Fewest queries with which `over` of them may be over the bound while the percentile holds with the
/// confidence: the least n >= over with P[Binomial(n, 1 - percentile) <= over] < 1 - confidence. This is
/// h(t) + t of MLPerf LoadGen (tolerance 0).
int64_t queries_needed(int64_t over, double percentile, double confidence = 0.99);

/// The most over-latency queries that `queries` allow: the largest t with queries_needed(t) <= queries; -1
/// if not even t = 0 fits.
int64_t overs_allowed(int64_t queries, double percentile, double confidence = 0.99);

struct EarlyStopping {
  bool enough = false;      // at least one over-latency query is allowed: the estimate exists
  int64_t allowed = -1;     // t
  int64_t needed = 0;       // queries for t = 1
  int64_t estimate_ns = 0;  // the t-th largest latency
};

/// Estimate of a latency percentile that the true one does not exceed, with the confidence. Latencies
/// ascend; failed queries are INT64_MAX at the end.
EarlyStopping early_stopping_estimate(std::span<const int64_t> sorted_ns, double percentile);

}  // namespace trireme::load
