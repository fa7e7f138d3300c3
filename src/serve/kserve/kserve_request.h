// Reads the body of a KServe v2 inference request: JSON, with tensors inside it or behind it as bytes.
#pragma once

#include <memory>
#include <string_view>

#include "serve/infer/infer_request.h"

namespace trireme::serve {

class SharedRegions;

/// Parses `body`, whose first `json_bytes` are JSON and whose rest are the binary inputs' bytes, in order.
/// Numeric inputs may look into `body`, which `owner` keeps alive. Throws invalid_argument in the words that
/// KServe clients' tests look for, which name `model` (fragments only). Inputs in shared memory are looked up
/// in `regions`; null refuses them.
InferRequest parse_infer_request(std::string_view body, size_t json_bytes,
                                 const std::shared_ptr<const void>& owner,
                                 const SharedRegions* regions = nullptr, std::string_view model = {});

/// The length that the Inference-Header-Content-Length header gives, checked against the body; the whole body
/// without one.
size_t infer_json_bytes(std::string_view header, bool has_header, size_t body_bytes);

}  // namespace trireme::serve
