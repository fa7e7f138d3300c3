// What one measurement yields: latencies, counts, a time line, and the uncertainty of each figure.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/report/histogram.h"
#include "base/report/svg_plot.h"

namespace trireme::load {

using base::format_number;

/// Nanoseconds as milliseconds with three significant digits or more.
std::string format_ms(double ns);

/// One slice of the measured time, by scheduled time for latencies and by completion time for counts.
struct Interval {
  base::Histogram latency;
  int64_t completed = 0;
  int64_t errors = 0;

  void merge(const Interval& other);
};

/// The part of one class of a mix.
struct ClassResult {
  std::string name;
  base::Histogram latency;  // ns, successes, from the scheduled time
  int64_t failed = 0;
};

/// One counted request; times are ns after the beginning of the counted time.
struct Record {
  int64_t scheduled_ns = 0, sent_ns = 0, first_ns = 0, ended_ns = 0;  // first byte of the answer; 0: none
  uint32_t request = 0;                                               // which of the prepared messages
  uint32_t parts = 0;                                                 // of a stream
  std::string error;
};

/// What the generator itself did with its time: whether it, and not the server, was the limit.
struct Effort {
  double busy_share = 0;    // processor time of the busiest thread over the time of the run
  double waited_share = 0;  // of the run in which the worst thread was ready and had no processor
  base::Histogram late;     // ns from when a request was due, with a connection free, to its sending
  int64_t starved = 0;      // counted requests that found all connections in use

  void merge(const Effort& other);
};

struct LoadResult {
  std::string title;        // of a scenario or a trace; empty = by concurrency or rate
  int64_t concurrency = 0;  // closed loop; 0 = open loop
  double offered_rate = 0;  // open loop, requests a second
  double window_s = 0;      // measured time
  size_t windows = 1;       // of equal length, one after the other, that it is made of

  base::Histogram latency;  // ns, successes, from the scheduled time
  base::Histogram service;  // ns, successes, from the moment the request was sent
  // Streams, successes: ns from the scheduled time to the first part, and between parts: (last - first) /
  // (parts - 1) of each answer of more than one.
  base::Histogram first_part, between_parts;
  int64_t parts = 0;
  double send_ns = 0,
         receive_ns = 0;  // sums over successes: until the request had left, and first byte to last
  int64_t scheduled = 0;  // requests that belong to the window
  int64_t succeeded = 0;
  std::map<std::string, int64_t> errors;  // class -> count: "status 503", "timeout", "connect", "closed"
  int64_t completed_in_window = 0;        // successes that ended inside the window: the throughput
  size_t taken = 0;                       // how far the turn of the prepared messages went, warm-up included
  int64_t sent_bytes = 0;
  int64_t received_bytes = 0;  // bodies of successes
  int64_t interval_ns = 0;
  std::vector<Interval> intervals;
  std::vector<ClassResult> classes;  // of a mix
  std::vector<Record> records;       // if asked for
  Effort effort;
  bool is_interrupted = false;

  int64_t error_count() const;
  double error_share() const;
  /// Successful answers a second.
  double throughput() const { return window_s > 0 ? static_cast<double>(completed_in_window) / window_s : 0; }
  /// Latency quantile with every failed request counted as infinitely late; INT64_MAX if it falls on one.
  int64_t quantile_with_errors(double q) const;
  /// Joins neighbouring intervals until 120 of them are as long as `covered_ns`: nobody knows in advance how
  /// long a run takes that ends by what it has sent.
  void widen_intervals(int64_t covered_ns);
  /// Adds what another thread measured at the same time.
  void merge(const LoadResult& other);
  /// Adds what was measured later: another window of the same load.
  void append(const LoadResult& later);
};

/// Whether as many answers came as requests, of an open loop: 5 % fewer and what chance explains are let
/// pass. A window that is longer than answers take begins with less to answer than it ends with, so its first
/// part, as long as 90 % of the answers take, is then left out; false where less than a third is left.
bool kept_up(const LoadResult& result);

struct Bounds {
  double low = 0;
  double high = 0;
};

/// How many independent samples the n latencies are worth: neighbours in time are alike (a queue that is long
/// stays long), so n is divided by the factor by which the variance of interval means exceeds that of
/// independent samples (method of batch means). At least 1, at most n; n itself with fewer than 8 filled
/// intervals.
double effective_samples(const LoadResult& result);

/// 95 % confidence interval of a latency quantile, ns: order statistics at the binomial bounds of the rank
/// (n q -+ 1.96 sqrt(n q (1 - q))) for the effective number of samples.
Bounds quantile_bounds(const LoadResult& result, double q);

/// 95 % confidence interval of the throughput by batch means over the intervals (Student's t); without at
/// least 4 intervals both bounds are the throughput.
Bounds throughput_bounds(const LoadResult& result);

/// "c=16", "120.0/s", or the name that the result brings.
std::string label_of(const LoadResult& result);

}  // namespace trireme::load
