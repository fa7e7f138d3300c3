// Reads single values of a model's configuration.
#include "serve/config/field_readers.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <map>
#include <string>

#include "base/error.h"

namespace trireme::serve {
namespace {

constexpr int64_t kCenturyUs = int64_t{100} * 365 * 24 * 3600 * 1'000'000;

constexpr std::string_view kDataTypes[] = {"TYPE_INVALID", "TYPE_BOOL",   "TYPE_UINT8", "TYPE_UINT16",
                                           "TYPE_UINT32",  "TYPE_UINT64", "TYPE_INT8",  "TYPE_INT16",
                                           "TYPE_INT32",   "TYPE_INT64",  "TYPE_FP16",  "TYPE_FP32",
                                           "TYPE_FP64",    "TYPE_STRING", "TYPE_BF16"};

/// The fields that are lists or maps, in any message of ModelConfig.
constexpr std::string_view kLists[] = {"input",
                                       "output",
                                       "dims",
                                       "shape",
                                       "instance_group",
                                       "gpus",
                                       "profile",
                                       "secondary_devices",
                                       "resources",
                                       "versions",
                                       "preferred_batch_size",
                                       "priority_queue_policy",
                                       "parameters",
                                       "metric_tags",
                                       "cc_model_filenames",
                                       "model_warmup",
                                       "inputs",
                                       "batch_input",
                                       "batch_output",
                                       "target_name",
                                       "source_input",
                                       "control_input",
                                       "control",
                                       "int32_false_true",
                                       "fp32_false_true",
                                       "bool_false_true",
                                       "state",
                                       "initial_state",
                                       "step",
                                       "input_map",
                                       "output_map",
                                       "op_library_filename",
                                       "agents",
                                       "gpu_execution_accelerator",
                                       "cpu_execution_accelerator",
                                       "graph_spec",
                                       "metric_control",
                                       "buckets"};

/// At most one field of each line may be present.
constexpr std::string_view kExclusive[][4] = {{"latest", "all", "specific", ""},
                                              {"direct", "oldest", "", ""},
                                              {"zero_data", "random_data", "input_data_file", "data_file"}};

bool is_list(std::string_view name) {
  return std::find(std::begin(kLists), std::end(kLists), name) != std::end(kLists);
}

/// The field that must be unique in a message: itself, or the first of those that exclude each other.
std::string_view slot_of(std::string_view name) {
  for (const auto& names : kExclusive) {
    if (std::find(std::begin(names), std::end(names), name) != std::end(names)) return names[0];
  }
  return name;
}

std::string list_of(std::span<const std::string_view> names) {
  std::string text;
  for (const std::string_view name : names) text += (text.empty() ? "" : ", ") + std::string(name);
  return text;
}

}  // namespace

size_t read_choice(const TextField& field, std::span<const std::string_view> names) {
  const std::string& word = field.as_word();
  const auto at = std::find(names.begin(), names.end(), word);
  if (at != names.end()) return static_cast<size_t>(at - names.begin());
  size_t number = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number);
  const bool is_number = error == std::errc() && end == word.data() + word.size() && number < names.size();
  base::require(is_number, "line ", field.line, ": field '", field.name, "' is '", word, "', want one of ",
                list_of(names));
  return number;
}

WireType read_data_type(const TextField& field) {
  const size_t choice = read_choice(field, kDataTypes);
  base::require(choice != 0, "line ", field.line, ": field '", field.name, "' is TYPE_INVALID");
  return config_type(kDataTypes[choice]);
}

int64_t read_natural(const TextField& field) {
  const int64_t value = field.as_int();
  base::require(value >= 0, "line ", field.line, ": field '", field.name, "' is negative: ", value);
  return value;
}

int64_t read_microseconds(const TextField& field) {
  const std::string& text = field.text;
  uint64_t large = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), large);
  const bool is_uint64 = error == std::errc() && end == text.data() + text.size();
  if (is_uint64 && large > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return kCenturyUs;
  return std::min(read_natural(field), kCenturyUs);
}

double read_number(const TextField& field) {
  std::string_view word = field.as_word();
  if (word == "true" || word == "false") return word == "true" ? 1 : 0;
  const bool is_hex = word.find_first_of("xX") != std::string_view::npos;
  if (is_hex) return static_cast<double>(field.as_int());
  if (word.size() > 1 && (word.back() == 'f' || word.back() == 'F') && word != "inf" && word != "-inf")
    word.remove_suffix(1);
  double value = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  base::require(error == std::errc() && end == word.data() + word.size(), "line ", field.line, ": field '",
                field.name, "' is no number: ", field.text);
  return value;
}

void check_once(const std::vector<TextField>& fields) {
  std::map<std::string_view, const TextField*> seen;
  for (const TextField& field : fields) {
    check_once(field.fields);
    if (is_list(field.name)) continue;
    const auto [at, is_new] = seen.emplace(slot_of(field.name), &field);
    if (is_new) continue;
    const TextField& first = *at->second;
    base::require(first.name != field.name, "line ", field.line, ": field '", field.name,
                  "' is there twice, first in line ", first.line);
    base::fail_invalid("line ", field.line, ": field '", field.name, "' excludes '", first.name, "' of line ",
                       first.line);
  }
}

}  // namespace trireme::serve
