// Where the outcome of a client's request goes, and who looks on.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "sched/request.h"
#include "serve/infer/infer_response.h"

namespace trireme::serve {

/// Follows one request to its end, whatever kind of model answers it. Told by the thread of the moment, one
/// call at a time.
class RequestObserver {
 public:
  virtual ~RequestObserver() = default;
  /// The last answer is there and goes to the client next. What this throws is the request's failure.
  virtual void on_answer(InferResponse& response) = 0;
  /// There is none: `failed` is told next.
  virtual void on_failure() = 0;
  /// The client's side has been told; nothing follows.
  virtual void on_told() = 0;
};

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
  std::shared_ptr<RequestObserver> observer = {};  ///< null: nobody
  bool wants_one_part = false;                     ///< a text that comes in pieces is to be one part
};

}  // namespace trireme::serve
