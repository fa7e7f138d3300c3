// Says why a run was ended.
#include "engine/run_stop.h"

#include "base/error.h"

namespace trireme::engine {

void RunStop::fail(StopReason reason, int64_t round) {
  using base::ErrorCode;
  switch (reason) {
    case StopReason::late:
      base::fail(ErrorCode::unavailable, "the run was ended: the deadline of its request has passed");
    case StopReason::abandoned: base::fail(ErrorCode::unavailable, "the client left");
    case StopReason::closing: base::fail(ErrorCode::unavailable, "the server is shutting down");
    case StopReason::rounds:
      base::fail(ErrorCode::invalid_argument, "the loop was ended after ", round,
                 " rounds: the loops of a request run no longer than --loop-timeout, or the model's "
                 "parameter loop_timeout, allows");
    case StopReason::hangs:
    case StopReason::none: break;
  }
  base::fail(ErrorCode::unavailable, "the run was ended: it took too long");
}

}  // namespace trireme::engine
