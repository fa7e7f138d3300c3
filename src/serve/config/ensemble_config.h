// ensemble_scheduling of a model's configuration: models in a row, connected by the names of their tensors.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/text/json.h"
#include "serve/config/pbtxt.h"

namespace trireme::serve {

struct EnsembleConfig {
  struct Step {
    std::string model;
    int64_t version = -1;  ///< -1: the latest
    using Map = std::vector<std::pair<std::string, std::string>>;
    Map inputs, outputs;  ///< name in the model, name in the ensemble
    std::string version_text() const { return version < 0 ? std::string() : std::to_string(version); }
  };
  std::vector<Step> steps;
  int64_t max_inflight = 0;  ///< 0: no limit
};

/// Throws invalid_argument or unsupported with the line.
EnsembleConfig read_ensemble_config(const std::vector<TextField>& fields);
base::Json ensemble_config_json(const EnsembleConfig& config);

/// Throws unless every tensor is written once, by a step or as one of `inputs`, before it is read, and all of
/// `outputs` are written.
void check_ensemble(const EnsembleConfig& config, const std::vector<std::string>& inputs,
                    const std::vector<std::string>& outputs);

/// By step of a checked ensemble: true where none of `outputs` depends on it.
std::vector<bool> unread_steps(const EnsembleConfig& config, std::vector<std::string> outputs);

}  // namespace trireme::serve
