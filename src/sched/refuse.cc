// Answers requests that will not be run.
#include "sched/refuse.h"

#include <new>
#include <utility>

#include "sched/current_error.h"

namespace trireme::sched {

void refuse(Request& request, Ending ending, base::ErrorCode code, const char* message) {
  Outcome outcome{.outputs = {}, .error = {}, .ending = ending, .timing = request.timing};
  try {
    outcome.error.emplace(code, message);
  } catch (const std::bad_alloc&) {
    outcome.error = current_error();
  }
  request.sink(std::move(outcome));
}

void refuse_all(std::vector<Request>& requests, const char* reason) {
  for (Request& r : requests) refuse(r, Ending::refused, base::ErrorCode::unavailable, reason);
}

void Leaving::answer() {
  for (Request& r : expired) {
    refuse(r, Ending::expired, base::ErrorCode::unavailable, "Request timeout expired");
  }
  for (Request& r : hopeless) {
    refuse(r, Ending::expired, base::ErrorCode::unavailable,
           "Request timeout expired: the answer would come after its deadline");
  }
  for (Request& r : cancelled) {
    refuse(r, Ending::cancelled, base::ErrorCode::unavailable, "the client left");
  }
  refuse_all(evicted, "Exceeds maximum queue size: others have a right to this tenant's place");
}

}  // namespace trireme::sched
