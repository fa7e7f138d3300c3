// The two inference messages of KServe's gRPC in protobuf's wire format, without copies of tensor bytes.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "http/message.h"
#include "serve/infer/infer_response.h"

namespace trireme::serve {

class SharedRegions;

/// A ModelInferRequest: the model it is for, and the request in the common form.
struct GrpcInferRequest {
  std::string model_name, model_version;
  InferRequest request;
  bool wants_empty_final = false;  ///< triton_enable_empty_final_response
};

/// Parses a message that lies in `pieces`, one after another, kept alive by `owner`. raw_input_contents that
/// lie in one piece and are aligned are viewed, others are copied once, straight into their tensor. Throws
/// invalid_argument for malformed messages and tensors.
GrpcInferRequest parse_grpc_infer(std::span<const std::string_view> pieces,
                                  const std::shared_ptr<const void>& owner, const SharedRegions* regions);

/// Where in a message, whose first bytes are `begin`, the first tensor of raw_input_contents lies; 0: not
/// seen.
size_t grpc_tensor_offset(std::string_view begin);

/// A ModelInferResponse as buffers to be sent one after another; raw_output_contents view the tensors' own
/// memory. `is_stream` wraps it in a ModelStreamInferResponse and says whether it is the request's final one.
std::vector<http::BodyPart> grpc_infer_response(const InferResponse& response, bool is_stream);

/// A ModelStreamInferResponse with an error; `id` names the request, so that its client can tell.
std::string grpc_stream_error(std::string_view message, std::string_view id);

}  // namespace trireme::serve
