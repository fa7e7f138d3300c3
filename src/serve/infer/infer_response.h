// An answer to a request for inference, before a protocol gives it its wire form.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "sched/request.h"
#include "serve/infer/infer_request.h"

namespace trireme::serve {

struct InferOutput {
  WireTensor tensor;
  bool is_binary = false;
  RegionSpan span;  ///< where it was written, if it is in shared memory
};

struct InferResponse {
  std::string id;
  bool has_id = false;
  std::string model_name, model_version;
  std::vector<InferOutput> outputs;
  sched::Timing timing = {};  ///< of its (last) batch
  /// Of a text: another instance was asked for the pages of its prompt, and was waited for no more; 0: none.
  int64_t pages_asked_ns = 0, pages_ns = 0;
  std::string traceparent = {};  ///< of our span, if the request was traced
  int64_t tokens = 0;            ///< of the texts that it was computed from, without padding
  bool is_final = true;          ///< no answer to the same request follows
  bool is_decoupled = false;     ///< of a model with 0..n answers; the final one then has no outputs
  /// Called by leave(); lives as long as the call that hands the response over. May be null.
  const std::function<void()>* before_send = nullptr;
  /// To be called when the wire form is made and about to go: counts the success, so that a client that has
  /// its answer also finds itself in the statistics.
  void leave() {
    if (const auto* tell = std::exchange(before_send, nullptr)) (*tell)();
  }
};

}  // namespace trireme::serve
