// Where the outcome of a client's request goes.
#pragma once

#include <cstdint>
#include <functional>

#include "sched/request.h"
#include "serve/infer/infer_response.h"

namespace trireme::serve {

/// What a client waits for. Exactly one of `done` and `failed` comes, on any thread, maybe before infer()
/// returns. Before it, a decoupled model calls `part` for each of its 0..n answers, one after another in
/// their order; its `done` then has no outputs and only says that it was all. Without `part` such models
/// refuse.
struct InferSink {
  std::function<void(InferResponse&&)> done;
  std::function<void(const base::Error&)> failed;
  std::function<bool()> cancelled;
  int64_t received_ns = 0;  ///< when the request was there
  int64_t begun_ns = 0;     ///< when its first bytes were, over HTTP; 0: not known
  std::function<void(InferResponse&&)> part = {};
};

}  // namespace trireme::serve
