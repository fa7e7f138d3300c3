// Reads the parameters of requests.
#include "serve/infer/infer_parameter.h"

#include <algorithm>

#include "base/error.h"

namespace trireme::serve {
namespace {

bool has_prefix(std::string_view text, std::string_view prefix) {
  return text.substr(0, prefix.size()) == prefix;
}

void set_sequence(SequenceWish& sequence, const ParameterValue& value) {
  if (const auto* text = std::get_if<std::string_view>(&value)) {
    sequence.text = std::string(*text);
    return;
  }
  sequence.number = parameter_unsigned(value, "sequence_id");
}

void set_region(RegionSpan& span, std::string_view key, const ParameterValue& value) {
  if (key == "shared_memory_region") span.region = parameter_text(value, key);
  if (key == "shared_memory_offset") span.offset = parameter_unsigned(value, key);
  if (key == "shared_memory_byte_size") span.bytes = parameter_unsigned(value, key);
}

}  // namespace

std::string parameter_text(const ParameterValue& value, std::string_view key) {
  const auto* text = std::get_if<std::string_view>(&value);
  base::require(text != nullptr, "Unable to parse '", key, "': expected a string");
  return std::string(*text);
}

uint64_t parameter_unsigned(const ParameterValue& value, std::string_view key) {
  if (const auto* big = std::get_if<uint64_t>(&value)) return *big;
  const auto* n = std::get_if<int64_t>(&value);
  base::require(n != nullptr && *n >= 0, "Invalid value for '", key, "': expected an unsigned integer");
  return static_cast<uint64_t>(*n);
}

bool parameter_bool(const ParameterValue& value, std::string_view key) {
  const auto* b = std::get_if<bool>(&value);
  base::require(b != nullptr, "Invalid value for '", key, "': expected a boolean");
  return *b;
}

void set_parameter(InferRequest& request, std::string_view key, const ParameterValue& value) {
  base::require(!std::holds_alternative<std::nullptr_t>(value), "parameter '", key,
                "' must be a number, a boolean or a string");
  base::require(!has_prefix(key, "triton_"), "parameter keys starting with 'triton_' are reserved, got '",
                key, "'");
  if (key == "binary_data_output") request.binary_output = parameter_bool(value, key);
  if (key == "timeout") request.timeout_us = parameter_unsigned(value, key);
  if (key == "priority") request.priority = parameter_unsigned(value, key);
  if (key == "tenant") request.tenant = parameter_text(value, key);
  if (key == "sequence_id") set_sequence(request.sequence, value);
  if (key == "sequence_start") request.sequence.is_start = parameter_bool(value, key);
  if (key == "sequence_end") request.sequence.is_end = parameter_bool(value, key);
}

void set_input_parameter(RegionSpan& span, std::string_view key, const ParameterValue& value) {
  if (has_prefix(key, "shared_memory_")) set_region(span, key, value);
}

void set_output_parameter(OutputWish& wish, std::string_view key, const ParameterValue& value) {
  if (key == "binary_data") wish.is_binary = parameter_bool(value, key);
  if (key == "classification") {
    wish.classification = static_cast<int64_t>(std::min<uint64_t>(parameter_unsigned(value, key), INT64_MAX));
  }
  if (has_prefix(key, "shared_memory_")) set_region(wish.span, key, value);
}

}  // namespace trireme::serve
