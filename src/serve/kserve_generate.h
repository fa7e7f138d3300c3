// The generate extension: flat JSON in, flat JSON out, for clients that know names and values only.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "serve/kserve_response.h"
#include "serve/model_config.h"

namespace trireme::serve {

/// `{"text": "...", "id": "...", "parameters": {...}}`: every other key is an input of that name, a value or
/// an array of values; one row where the model batches. Throws invalid_argument for what does not fit.
InferRequest generate_request(std::string_view body, const std::vector<TensorConfig>& inputs,
                              bool is_batched);

/// Model, version, id and the outputs by name: a value where there is one element, else a flat array.
base::Json generate_response(const InferResponse& response);

}  // namespace trireme::serve
