// How a model is served: what config.pbtxt says of it, completed from the model's own graph.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/text/json.h"
#include "ir/graph.h"
#include "serve/config/ensemble_config.h"
#include "serve/config/instance_config.h"
#include "serve/infer/wire_tensor.h"
#include "serve/config/sequence_config.h"
#include "serve/config/warmup_config.h"

namespace trireme::serve {

/// One input or output as clients see it. Dims leave out the batch; -1 is any extent.
struct TensorConfig {
  std::string name;
  WireType type;
  tensor::Dims dims;
  bool is_optional = false;
  std::string label_filename;
  std::string format = {};                   ///< FORMAT_NHWC or FORMAT_NCHW: told to clients; empty: none
  std::optional<tensor::Dims> reshape = {};  ///< as the model has it; absent: like dims

  /// What the model sees behind the batch dimension.
  const tensor::Dims& model_dims() const { return reshape ? *reshape : dims; }
};

struct VersionPolicy {
  enum class Kind { latest, all, specific } kind = Kind::latest;
  int64_t latest = 1;
  std::vector<int64_t> versions;
};

struct QueuePolicy {
  int64_t default_timeout_us = 0;              ///< 0: the server's
  std::optional<bool> allow_timeout_override;  ///< absent: allowed
  int64_t max_queue_size = 0;                  ///< 0: the server's
  bool runs_late = false;                      ///< timeout_action DELAY: late requests go behind the others
};

/// The honoured part of Triton's ModelConfig. Fields that are not here are refused by name when read.
struct ModelConfig {
  std::string name, platform, backend;
  std::optional<int64_t> max_batch_size;  ///< 0: no batch dimension; absent: inferred
  std::vector<TensorConfig> inputs, outputs;
  bool has_dynamic_batching = false;
  std::vector<int64_t> preferred_batch_size;
  bool preserves_order = false;  ///< preserve_ordering
  std::optional<int64_t> max_queue_delay_us;
  uint64_t priority_levels = 0, default_priority_level = 0;
  QueuePolicy queue;
  std::map<uint64_t, QueuePolicy> level_queues;  ///< by priority level, where it differs
  std::string default_model_filename;            ///< below a version's directory; empty: by format
  int instances = 0;                             ///< 0: the server's
  std::vector<InstanceGroup> groups;             ///< empty: one, with the server's count
  std::vector<WarmupConfig> warmups;
  std::vector<std::pair<std::string, std::string>> metric_tags;
  bool caches = false;        ///< response_cache
  bool is_decoupled = false;  ///< model_transaction_policy: 0..n answers to a request
  std::optional<SequenceConfig> sequence;
  std::optional<EnsembleConfig> ensemble;
  VersionPolicy versions;
  std::vector<std::pair<std::string, std::string>> parameters;

  /// The policy of a priority level.
  const QueuePolicy& queue_of(uint64_t level) const {
    const auto at = level_queues.find(level);
    return at == level_queues.end() ? queue : at->second;
  }
  /// What each instance needs, in their order.
  std::vector<sched::RateClaim> claims() const;
  /// The device of each instance, empty: the server's; an empty list: all of them.
  std::vector<std::string> devices() const;
  bool is_batched() const { return max_batch_size.value_or(0) > 0; }
};

/// Reads the text of a config.pbtxt. Throws invalid_argument for what is malformed, unsupported for a field
/// or value that is not honoured; both with the line.
ModelConfig parse_model_config(std::string_view text);
/// The same from JSON, as config_json prints it.
ModelConfig parse_model_config_json(std::string_view text);

/// By name, shapes that a model's file declares of outputs whose rank the graph does not know.
using DeclaredShapes = std::vector<std::pair<std::string, tensor::Shape>>;

/// Fills in what the config does not say and checks the rest against the graph. `max_rows` becomes
/// max_batch_size where batching is inferred: the first dimension of every input and output is symbolic.
/// Throws invalid_argument.
void complete_config(ModelConfig& config, const ir::Graph& graph, int64_t max_rows,
                     const DeclaredShapes& declared = {});

/// ModelConfig as Triton's JSON has it: default values printed too.
base::Json config_json(const ModelConfig& config);

/// The metadata form: inputs or outputs with the batch dimension in front.
base::Json tensors_json(const std::vector<TensorConfig>& tensors, bool is_batched);

}  // namespace trireme::serve
