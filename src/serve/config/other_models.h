// Models that the model readers do not know, opened by whoever starts the server: runs of the trainer.
#pragma once

#include <functional>
#include <string>

#include "model/model.h"

namespace trireme::serve {

/// All three or none. Called on the repository's thread and at the start.
struct OtherModels {
  std::function<bool(const std::string& directory)> holds;
  std::function<model::Model(const std::string& directory)> open;
  /// Changes when open() would give something else.
  std::function<std::string(const std::string& directory)> fingerprint;

  bool has(const std::string& directory) const { return holds && holds(directory); }
};

}  // namespace trireme::serve
