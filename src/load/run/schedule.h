// Which request of a thread is due when: arrivals at a rate, or what a pacer says, and the turn of the
// messages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>

#include "load/run/generator.h"
#include "load/run/tally.h"

namespace trireme::load {

/// A thread's share of what a plan sends. In an open loop it queues what is due; in a closed one it only says
/// which message is the next, and whether there is one.
class Schedule {
 public:
  Schedule(const LoadPlan& plan, const Window& window, int thread);

  bool is_open_loop() const { return plan_.rate > 0 || plan_.pacer != nullptr; }
  /// All counted requests have been started, or the pacer has no more.
  bool is_used_up() const { return quota_ == 0 || (plan_.pacer != nullptr && plan_.pacer->done()); }
  /// An arrival before `end_ns` is not in the backlog yet, which is full.
  bool is_behind(int64_t end_ns) const { return !is_stopped_ && plan_.rate > 0 && next_arrival_ns_ < end_ns; }
  /// From now on nothing becomes due.
  void stop() { is_stopped_ = true; }
  /// Puts what is due by now into the backlog, as far as that has room.
  void queue_due(int64_t now_ns, Tally& tally);
  /// A closed loop starts the next message, which counts if `is_counted`.
  size_t next_request(Tally& tally);
  void start_counted() { quota_ -= quota_ > 0 ? 1 : 0; }
  /// When the next request is due, as far as that is known; INT64_MAX: it is not.
  int64_t next_ns() const;

  std::deque<Send> backlog;  ///< due, waiting for a connection

 private:
  void queue_arrivals(int64_t now_ns, Tally& tally);
  void queue_paced(int64_t now_ns, Tally& tally);

  const LoadPlan& plan_;
  int64_t start_ns_;
  int64_t quota_;  ///< counted requests still to start; < 0: unlimited
  ArrivalTimes arrivals_;
  int64_t next_arrival_ns_ = 0;
  bool is_stopped_ = false;
  size_t next_request_;  ///< of the turn, in which threads alternate
};

/// The part of a total that one of so many threads has.
inline int64_t share_of(int64_t total, int threads, int thread) {
  return total * (thread + 1) / threads - total * thread / threads;
}

}  // namespace trireme::load
