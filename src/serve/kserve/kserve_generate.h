// The generate extension: flat JSON in, flat JSON out, for clients that know names and values only.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "http/reply.h"
#include "serve/infer/infer_sink.h"
#include "serve/config/model_config.h"

namespace trireme::serve {

/// `{"text": "...", "id": "...", "parameters": {...}}`: keys of the request and of its parameters are inputs
/// of that name, a value or an array of values, else parameters; one row where the model batches. Throws
/// invalid_argument for what does not fit.
InferRequest generate_request(std::string_view body, const std::vector<TensorConfig>& inputs,
                              bool is_batched);

/// JSON of model, version, id and the outputs by name: a value where there is one element, else a flat array.
std::string generate_response(const InferResponse& response);

/// Writes what comes to `reply`: the one answer as an object, or answers as server-sent events. Without
/// `is_stream` a decoupled model with no or several answers is an error; so is, as an event, what fails after
/// the first event. Its times are the caller's to set.
InferSink generate_sink(http::Reply reply, bool is_stream, bool is_decoupled);

}  // namespace trireme::serve
