// What one thread of the generator counts: requests of the measured time, their latencies and their errors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "load/requests/exchange.h"
#include "load/run/generator.h"

namespace trireme::load {

/// When a run begins, from when on its requests count, and when it ends.
struct Window {
  int64_t start_ns, counted_from_ns, end_ns, interval_ns;
};

/// One request on its way: when it was due, and what has become of it. 0: not yet.
struct Sent {
  Send what;
  size_t of_class = 0;  // of a mix
  int64_t started_ns = 0, sent_ns = 0, first_ns = 0;
  int64_t first_part_ns = 0, last_part_ns = 0;
  int64_t parts = 0;  // of a stream
};

/// A request belongs to the measurement if the time at which it was due does.
class Tally {
 public:
  Tally(const LoadPlan& plan, const Window& window);

  /// Whether a request counts that is due then.
  bool counts(int64_t scheduled_ns) const {
    return scheduled_ns >= window_.counted_from_ns && scheduled_ns < window_.end_ns;
  }
  /// When nothing more is sent; it comes sooner once the quota of requests is reached.
  int64_t end_ns() const { return window_.end_ns; }
  void end_at(int64_t ns) { window_.end_ns = ns; }

  size_t class_of(size_t request) const;
  void succeed(const Sent& sent, const Answer& answer, int64_t now_ns);
  void fail(const Sent& sent, const std::string& error, int64_t now_ns);
  /// What was due is taken back, as if it had not been: an interruption.
  void forget(const Send& what) { result.scheduled -= counts(what.scheduled_ns) ? 1 : 0; }

  LoadResult result;

 private:
  void record(const Sent& sent, const std::string& error, int64_t now_ns);
  Interval& interval_at(int64_t ns);

  const LoadPlan& plan_;
  Window window_;
};

}  // namespace trireme::load
