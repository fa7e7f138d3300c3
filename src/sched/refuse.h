// Answers requests that will not run.
#pragma once

#include <vector>

#include "sched/request.h"

namespace trireme::sched {

/// Tells the request's sink why it has no result. Not with a lock held: sinks write to sockets.
void refuse(Request& request, Ending ending, base::ErrorCode code, const char* message);
/// The same for many that are refused.
void refuse_all(std::vector<Request>& requests, const char* reason);

/// Requests that leave the queue without having run, until they are told why.
struct Leaving {
  std::vector<Request> expired, hopeless, cancelled, evicted;
  bool empty() const { return expired.empty() && hopeless.empty() && cancelled.empty() && evicted.empty(); }
  /// Tells them. Not with a lock held.
  void answer();
};

}  // namespace trireme::sched
