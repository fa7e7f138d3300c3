// Statistics of a measurement: merging threads, failure-aware quantiles, confidence by batch means.
#include "load/result.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

namespace trireme::load {

std::string format_ms(double ns) {
  const double ms = ns / 1e6;
  return format_number(ms, ms < 1 ? 4 : ms < 10 ? 3 : ms < 100 ? 2 : 1);
}

std::string label_of(const LoadResult& result) {
  if (!result.title.empty()) return result.title;
  if (result.concurrency > 0) return "c=" + std::to_string(result.concurrency);
  return format_number(result.offered_rate, 1) + "/s";
}

int64_t LoadResult::error_count() const {
  int64_t total = 0;
  for (const auto& [name, count] : errors) total += count;
  return total;
}

double LoadResult::error_share() const {
  const int64_t all = succeeded + error_count();
  return all == 0 ? 0 : static_cast<double>(error_count()) / static_cast<double>(all);
}

int64_t LoadResult::quantile_with_errors(double q) const {
  const double all = static_cast<double>(latency.count() + error_count());
  if (latency.count() == 0) return std::numeric_limits<int64_t>::max();
  // Rank among all; the successes are the first latency.count() of them.
  const double rank = q * all;
  if (rank > static_cast<double>(latency.count())) return std::numeric_limits<int64_t>::max();
  return latency.quantile(std::min(1.0, rank / static_cast<double>(latency.count())));
}

namespace {

void add_totals(LoadResult& to, const LoadResult& from) {
  to.latency.merge(from.latency);
  to.service.merge(from.service);
  to.first_part.merge(from.first_part);
  to.between_parts.merge(from.between_parts);
  to.parts += from.parts;
  to.send_ns += from.send_ns;
  to.receive_ns += from.receive_ns;
  to.effort.merge(from.effort);
  to.is_interrupted = to.is_interrupted || from.is_interrupted;
  to.scheduled += from.scheduled;
  to.succeeded += from.succeeded;
  to.completed_in_window += from.completed_in_window;
  to.sent_bytes += from.sent_bytes;
  to.received_bytes += from.received_bytes;
  for (const auto& [error, count] : from.errors) to.errors[error] += count;
  if (to.classes.empty()) {
    to.classes = from.classes;
    return;
  }
  for (size_t i = 0; i < from.classes.size(); ++i) {
    to.classes[i].latency.merge(from.classes[i].latency);
    to.classes[i].failed += from.classes[i].failed;
  }
}

}  // namespace

void Effort::merge(const Effort& other) {
  busy_share = std::max(busy_share, other.busy_share);
  waited_share = std::max(waited_share, other.waited_share);
  late.merge(other.late);
  starved += other.starved;
}

void Interval::merge(const Interval& other) {
  latency.merge(other.latency);
  completed += other.completed;
  errors += other.errors;
}

void LoadResult::widen_intervals(int64_t covered_ns) {
  constexpr int64_t kMost = 120;
  if (interval_ns <= 0) return;
  while (covered_ns / interval_ns >= kMost) {
    interval_ns *= 2;
    for (size_t i = 1; i < intervals.size(); ++i) {
      if (i % 2 == 1) {
        intervals[i / 2].merge(intervals[i]);
      } else {
        intervals[i / 2] = std::move(intervals[i]);
      }
    }
    intervals.resize((intervals.size() + 1) / 2);
  }
}

void LoadResult::merge(const LoadResult& other) {
  add_totals(*this, other);
  taken = std::max(taken, other.taken);  // threads take turns
  records.insert(records.end(), other.records.begin(), other.records.end());
  if (intervals.size() < other.intervals.size()) intervals.resize(other.intervals.size());
  for (size_t i = 0; i < other.intervals.size(); ++i) {
    intervals[i].merge(other.intervals[i]);
  }
}

void LoadResult::append(const LoadResult& later) {
  add_totals(*this, later);
  taken += later.taken;
  // As if it had followed at once.
  const auto shift_ns = static_cast<int64_t>(window_s * 1e9);
  for (Record r : later.records) {
    for (int64_t* at : {&r.scheduled_ns, &r.sent_ns, &r.first_ns, &r.ended_ns})
      *at += *at == 0 ? 0 : shift_ns;
    records.push_back(std::move(r));
  }
  window_s += later.window_s;
  windows += later.windows;
  intervals.insert(intervals.end(), later.intervals.begin(), later.intervals.end());
}

namespace {

/// Whether so few of the requests that were due are left that the server kept up. The requests that are under
/// way (Little's law) vary by the root of their number.
bool is_little(int64_t due, int64_t answered, double under_way) {
  constexpr double kShare = 0.05, kAlways = 3, kSpread = 2;
  const auto all = static_cast<double>(due);
  return static_cast<double>(due - answered) <=
         kShare * all + kAlways + kSpread * std::sqrt(std::min(under_way, all));
}

}  // namespace

bool kept_up(const LoadResult& r) {
  if (r.offered_rate <= 0) return true;
  const double under_way = r.offered_rate * r.latency.mean() / 1e9;
  if (is_little(r.scheduled, r.completed_in_window, under_way)) return true;
  const size_t each = r.intervals.size() / std::max<size_t>(1, r.windows);
  if (each == 0 || r.interval_ns <= 0 || r.latency.count() == 0) return false;
  const auto first = static_cast<size_t>(r.latency.quantile(0.9) / r.interval_ns) + 1;
  if (first > each || 3 * (each - first) < each) return false;
  int64_t due = 0, answered = 0;
  for (size_t i = 0; i < each * r.windows; ++i) {
    if (i % each < first) continue;
    due += r.intervals[i].latency.count() + r.intervals[i].errors;
    answered += r.intervals[i].completed;
  }
  return is_little(due, answered, under_way);
}

namespace {

double variance_of(const base::Histogram& h) {
  if (h.count() < 2) return 0;
  const double mean = h.mean();
  double squares = 0;
  h.for_each_bucket([&](int64_t low, int64_t high, int64_t count) {
    const double middle = (static_cast<double>(low) + static_cast<double>(high)) / 2 - mean;
    squares += middle * middle * static_cast<double>(count);
  });
  return squares / static_cast<double>(h.count() - 1);
}

// 97.5 % quantile of Student's t, by degrees of freedom; beyond the table the normal one.
double student_t(size_t freedom) {
  static constexpr std::array<double, 31> kTable = {0,     12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365,
                                                    2.306, 2.262,  2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
                                                    2.120, 2.110,  2.101, 2.093, 2.086, 2.080, 2.074, 2.069,
                                                    2.064, 2.060,  2.056, 2.052, 2.048, 2.045, 2.042};
  return freedom < kTable.size() ? kTable[freedom] : 1.96 + 2.4 / static_cast<double>(freedom);
}

}  // namespace

double effective_samples(const LoadResult& result) {
  const auto n = static_cast<double>(result.latency.count());
  constexpr size_t kFewest = 8;
  // Variance of interval means around the overall mean, each weighted by its size: for independent samples
  // E[sum m_i (mean_i - mean)^2] = (batches - 1) * variance.
  double between = 0;
  size_t batches = 0;
  for (const Interval& i : result.intervals) {
    if (i.latency.count() == 0) continue;
    const double off = i.latency.mean() - result.latency.mean();
    between += static_cast<double>(i.latency.count()) * off * off;
    ++batches;
  }
  const double variance = variance_of(result.latency);
  if (batches < kFewest || variance <= 0) return std::max(n, 1.0);
  const double inflation = between / static_cast<double>(batches - 1) / variance;
  return std::clamp(n / std::max(inflation, 1.0), 1.0, std::max(n, 1.0));
}

Bounds quantile_bounds(const LoadResult& result, double q) {
  const double n = effective_samples(result);
  const double spread = 1.96 * std::sqrt(n * q * (1 - q));
  const double low = std::clamp((n * q - spread) / n, 0.0, 1.0);
  const double high = std::clamp((n * q + spread + 1) / n, 0.0, 1.0);
  return {static_cast<double>(result.latency.quantile(low)),
          static_cast<double>(result.latency.quantile(high))};
}

Bounds throughput_bounds(const LoadResult& result) {
  const double mean = result.throughput();
  const size_t batches = result.intervals.size();
  if (batches < 4 || result.interval_ns <= 0) return {mean, mean};
  const double seconds = static_cast<double>(result.interval_ns) / 1e9;
  double centre = 0;
  for (const Interval& i : result.intervals) centre += static_cast<double>(i.completed) / seconds;
  centre /= static_cast<double>(batches);
  double squares = 0;
  for (const Interval& i : result.intervals) {
    const double off = static_cast<double>(i.completed) / seconds - centre;
    squares += off * off;
  }
  const double deviation = std::sqrt(squares / static_cast<double>(batches - 1));
  const double half = student_t(batches - 1) * deviation / std::sqrt(static_cast<double>(batches));
  return {std::max(0.0, mean - half), mean + half};
}

}  // namespace trireme::load
