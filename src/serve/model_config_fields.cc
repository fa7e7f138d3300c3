// The fields of ModelConfig that are not honoured, each with its reason: docs/model-config.md has the whole
// list.
#include <algorithm>
#include <iterator>

#include "base/error.h"
#include "serve/pbtxt.h"

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
    {"input.optional", "the models served here need all of their inputs"},
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

bool is_default(const TextField& f) {
  if (f.kind == TextField::Kind::message) {
    return std::all_of(f.fields.begin(), f.fields.end(), is_default);
  }
  constexpr std::string_view kDefaults[] = {"", "0", "0.0", "false", "False", "f", "PRIORITY_DEFAULT"};
  return std::find(std::begin(kDefaults), std::end(kDefaults), f.text) != std::end(kDefaults);
}

}  // namespace

void refuse_field(std::string_view path, const TextField& field) {
  const std::string whole = base::concat(path, path.empty() ? "" : ".", field.name);
  const auto at = std::find_if(std::begin(kUnhonoured), std::end(kUnhonoured),
                               [&](const Unhonoured& u) { return u.path == whole; });
  if (at == std::end(kUnhonoured)) {
    base::fail_unsupported("line ", field.line, ": '", whole, "' is no field of a model's configuration");
  }
  const bool is_list = whole == "instance_group.gpus";  // whose elements have no default
  if (is_default(field) && !is_list) return;
  base::fail_unsupported("line ", field.line, ": field '", whole, "' is not honoured: ", at->reason);
}

}  // namespace trireme::serve
