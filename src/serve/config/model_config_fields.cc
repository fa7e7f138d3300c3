// The fields of ModelConfig that are not honoured, each with its reason; docs/model-config.md has the
// complete list.
#include <algorithm>
#include <charconv>
#include <iterator>
#include <string>

#include "base/error.h"
#include "base/text/options.h"
#include "serve/config/pbtxt.h"

namespace trireme::serve {
namespace {

struct Unhonoured {
  std::string_view path, reason;
};

constexpr std::string_view kNoGpu = "this server runs on the CPU";
constexpr std::string_view kNoRagged =
    "requests of unequal lengths are padded: see the parameter pad_buckets";
constexpr std::string_view kOneLayout =
    "tensors have one layout, and their extents are never tensors themselves";

constexpr Unhonoured kUnhonoured[] = {
    {"cc_model_filenames", kNoGpu},
    {"batch_input", kNoRagged},
    {"batch_output", kNoRagged},
    {"model_operations", "no code is loaded from a repository"},
    {"model_repository_agents", "no code is loaded from a repository"},
    {"runtime", "there is one runtime"},
    {"model_metrics", "histograms have ten buckets a decade for every model"},
    {"input.allow_ragged_batch", kNoRagged},
    {"input.is_shape_tensor", kOneLayout},
    {"input.is_non_linear_format_io", kOneLayout},
    {"output.is_shape_tensor", kOneLayout},
    {"output.is_non_linear_format_io", kOneLayout},
    {"instance_group.gpus", kNoGpu},
    {"instance_group.secondary_devices", kNoGpu},
    {"instance_group.profile", kNoGpu},
    {"instance_group.passive", "an instance that never runs would serve nobody"},
    {"instance_group.host_policy", "--pin and --threads place an instance's threads"},
    {"optimization.graph.level", "all passes that keep the results are always on"},
    {"optimization.priority", "models share the cores alike; see rate_limiter"},
    {"optimization.cuda", kNoGpu},
    {"optimization.execution_accelerators", "there is one executor"},
    {"optimization.gather_kernel_buffer_threshold", kNoGpu},
    {"optimization.eager_batching", "inputs are gathered when an instance is free"},
    {"sequence_batching.iterative_sequence", "each request has one response"},
    {"sequence_batching.direct.minimum_slot_utilization", "a batch goes when it is full or its time is up"},
    {"sequence_batching.oldest.preserve_ordering", "the answers of a sequence are in order always"},
    {"sequence_batching.state.use_same_buffer_for_input_output", "a state is copied between requests"},
    {"sequence_batching.state.use_growable_memory", "a state has the extents of its dims"},
    {"ensemble_scheduling.step.model_namespace", "a model's name is unique in the repository"},
};

/// The fields that are honoured, for suggestions when a name is misspelt.
constexpr std::string_view kHonoured[] = {
    "name",
    "platform",
    "backend",
    "version_policy",
    "version_policy.latest",
    "version_policy.latest.num_versions",
    "version_policy.all",
    "version_policy.specific",
    "version_policy.specific.versions",
    "max_batch_size",
    "input",
    "input.name",
    "input.data_type",
    "input.dims",
    "input.format",
    "input.optional",
    "input.reshape",
    "input.reshape.shape",
    "output",
    "output.label_filename",
    "optimization",
    "optimization.input_pinned_memory",
    "optimization.output_pinned_memory",
    "dynamic_batching",
    "dynamic_batching.preferred_batch_size",
    "dynamic_batching.max_queue_delay_microseconds",
    "dynamic_batching.preserve_ordering",
    "dynamic_batching.priority_levels",
    "dynamic_batching.default_priority_level",
    "dynamic_batching.default_queue_policy",
    "dynamic_batching.default_queue_policy.timeout_action",
    "dynamic_batching.default_queue_policy.default_timeout_microseconds",
    "dynamic_batching.default_queue_policy.allow_timeout_override",
    "dynamic_batching.default_queue_policy.max_queue_size",
    "dynamic_batching.priority_queue_policy",
    "instance_group",
    "instance_group.kind",
    "instance_group.count",
    "instance_group.rate_limiter",
    "instance_group.rate_limiter.resources",
    "instance_group.rate_limiter.priority",
    "default_model_filename",
    "metric_tags",
    "parameters",
    "parameters.value.string_value",
    "model_warmup",
    "model_warmup.batch_size",
    "model_warmup.inputs",
    "model_warmup.inputs.value.zero_data",
    "model_warmup.inputs.value.random_data",
    "model_warmup.inputs.value.input_data_file",
    "model_transaction_policy",
    "model_transaction_policy.decoupled",
    "response_cache",
    "response_cache.enable",
    "sequence_batching",
    "sequence_batching.direct",
    "sequence_batching.oldest",
    "sequence_batching.oldest.max_candidate_sequences",
    "sequence_batching.max_sequence_idle_microseconds",
    "sequence_batching.control_input",
    "sequence_batching.control_input.control",
    "sequence_batching.state",
    "sequence_batching.state.input_name",
    "sequence_batching.state.output_name",
    "sequence_batching.state.initial_state",
    "sequence_batching.state.initial_state.data_file",
    "ensemble_scheduling",
    "ensemble_scheduling.step",
    "ensemble_scheduling.step.model_name",
    "ensemble_scheduling.step.model_version",
    "ensemble_scheduling.step.input_map",
    "ensemble_scheduling.step.output_map",
    "ensemble_scheduling.max_inflight_requests",
};

/// A zero in any form that a number has in the text format: 0x0, 00, -0.0, 0e3, 0f.
bool is_zero(std::string_view number) {
  if (number.starts_with('-')) number.remove_prefix(1);
  if (number.starts_with("0x") || number.starts_with("0X"))
    return number.size() > 2 && number.find_first_not_of('0', 2) == std::string_view::npos;
  if (number.size() > 1 && (number.back() == 'f' || number.back() == 'F')) number.remove_suffix(1);
  double value = 1;
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), value);
  return error == std::errc() && end == number.data() + number.size() && value == 0;
}

bool is_default_field(const TextField& f) {
  if (f.kind == TextField::Kind::message) {
    return std::all_of(f.fields.begin(), f.fields.end(), is_default_field);
  }
  if (f.kind == TextField::Kind::string) return f.text.empty();
  constexpr std::string_view kDefaults[] = {"", "false", "False", "f", "PRIORITY_DEFAULT"};
  return is_zero(f.text) ||
         std::find(std::begin(kDefaults), std::end(kDefaults), f.text) != std::end(kDefaults);
}

std::string_view last_name(std::string_view path) {
  const size_t dot = path.rfind('.');
  return dot == std::string_view::npos ? path : path.substr(dot + 1);
}

/// " (is ... meant?)", or nothing if no field has a similar name.
std::string meant(std::string_view name) {
  if (name.size() > 64) return "";
  std::string_view best;
  size_t least = 3;  // a typing error changes one or two letters
  const auto look = [&](std::string_view path) {
    const size_t distance = base::edit_distance(last_name(path), name);
    if (distance >= least || distance * 3 > name.size()) return;
    least = distance;
    best = path;
  };
  for (const std::string_view path : kHonoured) look(path);
  for (const Unhonoured& u : kUnhonoured) look(u.path);
  return best.empty() ? "" : base::concat(" (is '", best, "' meant?)");
}

}  // namespace

void refuse_field(std::string_view path, const TextField& field) {
  const std::string whole = base::concat(path, path.empty() ? "" : ".", field.name);
  const auto at = std::find_if(std::begin(kUnhonoured), std::end(kUnhonoured),
                               [&](const Unhonoured& u) { return u.path == whole; });
  if (at == std::end(kUnhonoured)) {
    base::fail_unsupported("line ", field.line, ": '", whole, "' is no field of a model's configuration",
                           meant(field.name));
  }
  const bool is_list = whole == "instance_group.gpus";  // their elements have no default
  if (is_default_field(field) && !is_list) return;
  base::fail_unsupported("line ", field.line, ": field '", whole, "' is not honoured: ", at->reason);
}

}  // namespace trireme::serve
