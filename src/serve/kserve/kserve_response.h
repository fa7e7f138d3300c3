// Writes a KServe v2 inference response: JSON, with tensors inside it or behind it as bytes.
#pragma once

#include <string>

#include "http/message.h"
#include "serve/infer/infer_response.h"

namespace trireme::serve {

/// Binary outputs stand behind the JSON as views of the tensors' own memory. Throws invalid_argument for FP16
/// or BF16 outside the binary form.
http::Response infer_http_response(InferResponse response);

/// Appends a tensor's values as a flat JSON array. Throws invalid_argument for FP16 or BF16.
void append_values(std::string& json, const WireTensor& tensor);

}  // namespace trireme::serve
