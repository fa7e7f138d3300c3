// A request for inference in the form that all protocols and all kinds of models share.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "serve/infer/wire_tensor.h"

namespace trireme::serve {

/// A place in a shared memory region of the client; no region name: none.
struct RegionSpan {
  std::string region;
  uint64_t offset = 0, bytes = 0;
};

/// What the client wants of one output.
struct OutputWish {
  std::string name;
  std::optional<bool> is_binary;  ///< binary_data; absent: the request's binary_data_output
  int64_t classification = 0;     ///< > 0: the best so many classes as strings
  RegionSpan span;                ///< where to write it instead of into the response
};

/// The sequence that a request belongs to: a number or a text; 0 and "" are none. Each tenant has its own.
struct SequenceWish {
  std::string tenant = {};  ///< empty: nobody is told apart
  uint64_t number = 0;
  std::string text;
  bool is_start = false, is_end = false;

  bool is_any() const { return number != 0 || !text.empty(); }
};

struct InferRequest {
  std::string id;
  bool has_id = false;
  std::vector<WireTensor> inputs;   ///< in the request's order
  std::vector<OutputWish> outputs;  ///< empty: all
  bool binary_output = false;       ///< binary_data_output: the default of every output
  uint64_t timeout_us = 0;          ///< 0: none asked for
  uint64_t priority = 0;            ///< 0: the model's default, 1: highest
  int64_t deadline_ns = 0;          ///< steady clock, when the caller itself gives up; 0: never
  bool is_background = false;       ///< it runs in what others leave, and waits as long as it takes
  SequenceWish sequence;
  std::string tenant;       ///< as the header or parameter that tells tenants apart has it
  std::string traceparent;  ///< the caller's W3C trace context, or empty
};

/// More inputs or outputs than this, or dimensions of one, no model has: a request is refused before they
/// cost memory, of which an empty one takes a hundred times its text.
inline constexpr size_t kMaxRequestTensors = 4096, kMaxRequestDims = 256;

/// Throws if a request that holds `tensors` inputs (or outputs) or `dims` dimensions of one has no room for
/// another.
void check_tensor_room(size_t tensors);
void check_dim_room(size_t dims);

/// Throws unless every input and output has a name, each once.
void check_request_names(const InferRequest& request);

}  // namespace trireme::serve
