// Writes a KServe v2 inference response: JSON, with tensors inside it or behind it as bytes.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "sched/request.h"
#include "http/message.h"
#include "serve/kserve/kserve_request.h"

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
  sched::Timing timing = {};     ///< of its (last) batch
  std::string traceparent = {};  ///< of our span, if the request was traced
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

/// Binary outputs stand behind the JSON as views of the tensors' own memory. Throws invalid_argument for FP16
/// or BF16 outside the binary form.
http::Response infer_http_response(InferResponse response);

/// Appends a tensor's values as a flat JSON array. Throws invalid_argument for FP16 or BF16.
void append_values(std::string& json, const WireTensor& tensor);

/// A tensor's wire bytes: its own memory, or the strings with their lengths.
http::BodyPart tensor_bytes(const WireTensor& tensor);

/// The classification extension: the best `count` values of each row as "value:index[:label]" strings,
/// [count] or [rows, count]. `labels` may be empty. Throws invalid_argument for BYTES or for more than a
/// million elements.
WireTensor classify(const WireTensor& scores, int64_t count, bool is_batched,
                    const std::vector<std::string>& labels);

}  // namespace trireme::serve
