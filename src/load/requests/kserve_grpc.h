// The few messages of KServe v2's gRPC service that the load generator needs, in protobuf's wire format.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/text/json.h"
#include "load/requests/payload.h"

namespace trireme::load {

/// ModelInferRequest with raw_input_contents.
std::string encode_grpc_infer(std::string_view model, const std::vector<InputTensor>& inputs);

/// ModelMetadataRequest and ModelStatisticsRequest: both name a model in field 1.
std::string encode_model_name(std::string_view model);

/// ModelMetadataResponse and ModelStatisticsResponse as the JSON that the HTTP routes answer with, as far as
/// it is read here. Throw unavailable for bytes that are no such message.
base::Json metadata_of_grpc(std::string_view message);
base::Json statistics_of_grpc(std::string_view message);

}  // namespace trireme::load
