// Metrics for scrapers: counters, gauges and histograms with labels, in Prometheus text format 0.0.4.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace trireme::base {
class Clock;
}

namespace trireme::serve {

/// Label names and values; order is kept and is part of a series' identity.
using MetricLabels = std::vector<std::pair<std::string, std::string>>;

/// Only grows. One atomic addition; any thread.
class MetricCounter {
 public:
  void add(uint64_t by = 1) { value_.fetch_add(by, std::memory_order_relaxed); }
  uint64_t value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> value_{0};
};

/// Goes up and down; any thread.
class MetricGauge {
 public:
  void set(double value) { value_.store(value, std::memory_order_relaxed); }
  void add(double by) { value_.fetch_add(by, std::memory_order_relaxed); }
  double value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<double> value_{0};
};

/// Counts observations in buckets with fixed upper bounds (ascending; +Inf is added). Two atomic additions,
/// and one look into a table: no search.
class MetricHistogram {
 public:
  explicit MetricHistogram(std::vector<double> bounds);
  void observe(double value);

  const std::vector<double>& bounds() const { return bounds_; }
  /// Observations in bucket i alone; i = bounds().size() is the one above all bounds.
  uint64_t in_bucket(size_t i) const { return buckets_[i].load(std::memory_order_relaxed); }
  double sum() const { return sum_.load(std::memory_order_relaxed); }
  uint64_t count() const;

 private:
  size_t bucket_of(double value) const;

  std::vector<double> bounds_;
  // By a value's exponent and first three bits of its fraction, from those of the first bound to those of the
  // last: the first bound that such a value may not exceed. Empty where a bound is not above 0.
  std::vector<uint16_t> table_;
  uint64_t first_key_ = 0;
  std::unique_ptr<std::atomic<uint64_t>[]> buckets_;
  std::atomic<double> sum_{0};
};

/// Bounds from `low` growing by `factor`, `count` of them: fine-grained latency buckets.
std::vector<double> metric_buckets(double low, double factor, int count);

/// Owns all series. Asking again for the same name and labels gives the same object; references stay valid as
/// long as the registry. Everything may be called from any thread without a lock: lists only ever grow, at
/// their head.
class MetricRegistry {
 public:
  MetricRegistry();
  ~MetricRegistry();
  MetricRegistry(const MetricRegistry&) = delete;
  MetricRegistry& operator=(const MetricRegistry&) = delete;

  // A name used with two kinds is an internal error; so is a name or label that Prometheus would refuse.
  MetricCounter& counter(std::string_view name, std::string_view help, const MetricLabels& labels = {});
  MetricGauge& gauge(std::string_view name, std::string_view help, const MetricLabels& labels = {});
  MetricHistogram& histogram(std::string_view name, std::string_view help, const std::vector<double>& bounds,
                             const MetricLabels& labels = {});
  /// What a summary looks at: a histogram of this registry, in its unit times `scale`. The clock outlives the
  /// registry.
  struct SummarySource {
    const MetricHistogram& histogram;
    double scale;
    const base::Clock& clock;
  };
  /// Quantiles of about the last minute.
  void summary_of(std::string_view name, std::string_view help, const MetricLabels& labels,
                  const SummarySource& source);
  /// A gauge or counter whose value is read when scraped; NaN: nothing is shown. `read` must stay callable
  /// and be safe from any thread.
  void gauge_from(std::string_view name, std::string_view help, const MetricLabels& labels,
                  std::function<double()> read);
  void counter_from(std::string_view name, std::string_view help, const MetricLabels& labels,
                    std::function<double()> read);

  /// Of the series that carry the label `of`, those whose label `by` has one of these values are shown: of a
  /// model the versions that serve. Counts of others go on from where they were once they are shown again.
  void show_only(const std::pair<std::string, std::string>& of, std::string_view by,
                 const std::vector<std::string>& values);

  /// The whole exposition, families in order of first registration.
  std::string expose() const;
  static constexpr std::string_view kContentType = "text/plain; version=0.0.4; charset=utf-8";

 private:
  enum class Kind : uint8_t { counter, gauge, histogram, summary };
  struct Series;
  struct Family;
  Family& family(std::string_view name, std::string_view help, Kind kind);
  Series& series(Family& family, const MetricLabels& labels, const std::function<void(Series&)>& make);

  std::atomic<Family*> families_{nullptr};
};

}  // namespace trireme::serve
