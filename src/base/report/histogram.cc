// A high-dynamic-range histogram: recording, merging and quantiles.
#include "base/report/histogram.h"

#include <algorithm>
#include <cmath>

namespace trireme::base {

void Histogram::record(int64_t value, int64_t times) {
  if (times <= 0) return;
  value = std::max<int64_t>(value, 0);
  const size_t i = bucket(value);
  // Grow by whole powers of two, so that recording seldom allocates.
  if (i >= counts_.size()) counts_.resize(((i >> (kBits - 1)) + 1) << (kBits - 1));
  counts_[i] += times;
  count_ += times;
  min_ = std::min(min_, value);
  max_ = std::max(max_, value);
  sum_ += static_cast<double>(value) * static_cast<double>(times);
}

void Histogram::merge(const Histogram& other) {
  if (other.counts_.size() > counts_.size()) counts_.resize(other.counts_.size());
  for (size_t i = 0; i < other.counts_.size(); ++i) counts_[i] += other.counts_[i];
  count_ += other.count_;
  min_ = std::min(min_, other.min_);
  max_ = std::max(max_, other.max_);
  sum_ += other.sum_;
}

void Histogram::clear() { *this = Histogram(); }

int64_t Histogram::quantile(double q) const {
  if (count_ == 0) return 0;
  const double exact_rank = std::ceil(std::clamp(q, 0.0, 1.0) * static_cast<double>(count_));
  const int64_t rank = std::clamp<int64_t>(static_cast<int64_t>(exact_rank), 1, count_);
  int64_t seen = 0;
  for (size_t i = 0; i < counts_.size(); ++i) {
    seen += counts_[i];
    if (seen >= rank) return std::min(high(i), max_);
  }
  return max_;
}

int64_t Histogram::count_at_most(int64_t value) const {
  if (value < 0) return 0;
  const size_t end = std::min(bucket(value) + 1, counts_.size());
  int64_t total = 0;
  for (size_t i = 0; i < end; ++i) total += counts_[i];
  return total;
}

}  // namespace trireme::base
