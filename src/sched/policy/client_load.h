// Who asks a scheduler: what of it is under way, and what usually is.
#pragma once

#include <cstddef>
#include <cstdint>

#include "sched/policy/background_share.h"
#include "sched/policy/usual_load.h"

namespace trireme::sched {

/// Counts the requests that run, those of clients and those of kBackgroundPriority, and learns how many of
/// clients usually wait or run. Not for several threads at once.
class ClientLoad {
 public:
  /// A request came.
  void came(int64_t now_ns, bool is_background) {
    if (!is_background) background_.arrived(now_ns);
    last_arrival_ns_ = now_ns;
  }
  /// A client's was accepted; with it so many of clients wait.
  void accepted(size_t waiting) { usual_.arrived(in_flight(waiting)); }
  /// So many began to run, or ended.
  void began(size_t requests, bool is_background) {
    running_ += requests;
    if (is_background) background_.began(requests);
  }
  void ended(size_t requests, bool is_background) {
    running_ -= requests;
    if (is_background) background_.ended(requests);
  }
  /// A client's request was answered so long after it came.
  void answered(int64_t latency_ns) { background_.answered(latency_ns); }
  /// A batch of background requests took so long.
  void ran_background(int64_t now_ns, int64_t took_ns) { background_.ran(now_ns, took_ns); }

  /// Requests of clients that wait or run; of them `waiting` wait.
  size_t in_flight(size_t waiting) const { return waiting + running_ - background_.running(); }
  /// Who is usually here is here.
  bool is_complete(size_t waiting) const { return usual_.is_complete(in_flight(waiting)); }
  BackgroundShare::Leave background_leave(int64_t now_ns) const { return background_.at(now_ns); }
  int64_t last_arrival_ns() const { return last_arrival_ns_; }  ///< of any request; 0: none yet

 private:
  UsualLoad usual_;
  BackgroundShare background_;
  size_t running_ = 0;  ///< of both kinds
  int64_t last_arrival_ns_ = 0;
};

}  // namespace trireme::sched
