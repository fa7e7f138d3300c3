// The binomial bounds behind early stopping.
#include "load/early_stopping.h"

#include <cmath>

#include "base/error.h"

namespace trireme::load {
namespace {

// Walks the terms P[X = 0], P[X = 1], ... of a binomial distribution. In logarithms: (1 - p)^n underflows.
class BinomialTerms {
 public:
  BinomialTerms(int64_t trials, double probability)
      : trials_(static_cast<double>(trials)),
        log_odds_(std::log(probability) - std::log1p(-probability)),
        log_term_(trials_ * std::log1p(-probability)) {}
  double next() {
    const double term = std::exp(log_term_);
    log_term_ += log_odds_ + std::log((trials_ - k_) / (k_ + 1));
    ++k_;
    return term;
  }

 private:
  double trials_, log_odds_, log_term_, k_ = 0;
};

void check_levels(double percentile, double confidence) {
  base::require(percentile > 0 && percentile < 1, "percentile is not between 0 and 1: ", percentile);
  base::require(confidence > 0 && confidence < 1, "confidence is not between 0 and 1: ", confidence);
}

}  // namespace

double binomial_cdf(int64_t successes, int64_t trials, double probability) {
  BinomialTerms terms(trials, probability);
  double sum = 0;
  for (int64_t k = 0; k <= successes; ++k) sum += terms.next();
  return sum;
}

int64_t queries_needed(int64_t over, double percentile, double confidence) {
  check_levels(percentile, confidence);
  // The sum falls as n grows: double until it is below the level, then bisect.
  const auto holds = [&](int64_t n) { return binomial_cdf(over, n, 1 - percentile) < 1 - confidence; };
  int64_t low = over, high = over + 1;  // low does not hold: all n <= over give a sum of 1
  while (!holds(high)) {
    low = high;
    high *= 2;
  }
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    (holds(middle) ? high : low) = middle;
  }
  return high;
}

int64_t overs_allowed(int64_t queries, double percentile, double confidence) {
  check_levels(percentile, confidence);
  BinomialTerms terms(queries, 1 - percentile);
  double sum = 0;
  for (int64_t t = 0; t < queries; ++t) {
    sum += terms.next();
    if (sum >= 1 - confidence) return t - 1;
  }
  return queries - 1;
}

EarlyStopping early_stopping_estimate(std::span<const int64_t> sorted_ns, double percentile) {
  EarlyStopping out;
  const auto n = static_cast<int64_t>(sorted_ns.size());
  out.needed = queries_needed(1, percentile);
  out.allowed = overs_allowed(n, percentile);
  out.enough = out.allowed >= 1;
  if (out.enough) out.estimate_ns = sorted_ns[static_cast<size_t>(n - out.allowed)];
  return out;
}

}  // namespace trireme::load
