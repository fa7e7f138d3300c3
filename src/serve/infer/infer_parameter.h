// The parameters of requests, by name: what they mean is the same whatever wire form carries them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>

#include "serve/infer/infer_request.h"

namespace trireme::serve {

/// A parameter's value as either wire carries it; null only in JSON, which refuses it.
using ParameterValue = std::variant<std::nullptr_t, bool, int64_t, uint64_t, double, std::string_view>;

/// The value by type; throw invalid_argument naming the key for another one.
std::string parameter_text(const ParameterValue& value, std::string_view key);
uint64_t parameter_unsigned(const ParameterValue& value, std::string_view key);
bool parameter_bool(const ParameterValue& value, std::string_view key);

/// A parameter of the request, an input or an output. Unknown names are let pass, as the protocol wants;
/// known ones with a value that does not fit, and reserved names, throw.
void set_parameter(InferRequest& request, std::string_view key, const ParameterValue& value);
void set_input_parameter(RegionSpan& span, std::string_view key, const ParameterValue& value);
void set_output_parameter(OutputWish& wish, std::string_view key, const ParameterValue& value);

}  // namespace trireme::serve
