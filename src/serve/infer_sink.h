// Where the outcome of a client's request goes.
#pragma once

#include <cstdint>
#include <functional>

#include "sched/request.h"
#include "serve/kserve_response.h"

namespace trireme::serve {

/// What a client waits for. Exactly one of the two calls comes, on any thread, maybe before infer() returns.
struct InferSink {
  std::function<void(InferResponse&&)> done;
  std::function<void(const base::Error&)> failed;
  std::function<bool()> cancelled;
  int64_t received_ns = 0;
};

}  // namespace trireme::serve
