// The load generator: sends prepared requests on schedule over many connections from few threads.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "load/load_options.h"
#include "load/pacer.h"
#include "load/requests/payload.h"
#include "load/result.h"

namespace trireme::load {

/// One measurement: a pacer, or exactly one of concurrency and rate is positive.
struct LoadPlan {
  Target target;
  const std::vector<std::string>* requests = nullptr;  // whole messages, head and body, sent in turn
  const Payload* mix = nullptr;                        // order and classes of the requests, if it has any
  int64_t concurrency = 0;  // closed loop: connections, one request in flight on each
  double rate = 0;          // open loop: requests a second
  Arrivals arrivals = Arrivals::poisson;
  /// Decides what is sent when, in place of all counts and times here but `connections`; `duration_ns` is
  /// then only the expected one, and the timeout counts from the sending. One thread.
  Pacer* pacer = nullptr;
  int64_t think_ns = 0;
  int64_t warmup_ns = 0;
  int64_t duration_ns = 0;
  int64_t max_requests = 0;  // counted ones; 0 = by time alone
  int64_t timeout_ns = 0;    // from the scheduled time
  int64_t connections = 1;   // open loop: most connections
  int threads = 1;
  uint64_t seed = 1;
  size_t first_request = 0;                 // the turn begins with this one
  bool records = false;                     // every counted request goes into the result
  const std::atomic<bool>* stop = nullptr;  // once true, nothing more is sent and the result is what came
};

/// Runs the plan and waits for its last answer. A request belongs to the measurement if its *scheduled* time
/// does, so a stalled server is charged for every request that should have been sent meanwhile (no
/// coordinated omission). Throws unavailable if the server cannot be reached at the start, exhausted if the
/// process may not open as many connections.
LoadResult run_load(const LoadPlan& plan);

/// Time of the k-th arrival of one thread's share, ns after the start. Poisson: exponential gaps from a
/// stream of its own, so that the threads together are a Poisson process of the whole rate. Fixed: thread t
/// of n has every n-th tick.
class ArrivalTimes {
 public:
  ArrivalTimes(const LoadPlan& plan, int thread);
  /// The next arrival; call it once for each.
  int64_t next_ns();

 private:
  Arrivals arrivals_;
  double gap_ns_;
  double at_ns_;
  uint64_t seed_, stream_, index_ = 0;
};

}  // namespace trireme::load
