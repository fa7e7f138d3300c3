// The directories of a model repository: which models and versions are there, and whether they changed.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "serve/config/model_config.h"
#include "serve/config/other_models.h"

namespace trireme::serve {

/// The number of a version directory, or 0: digits only, above 0, no leading zero.
int64_t version_number(std::string_view name);

/// Names of the models in the repositories, sorted, each once. Throws not_found if a root is no directory.
std::vector<std::string> model_names(const std::vector<std::string>& roots);
/// The directories of that name, in the order of the roots: one, unless something is wrong.
std::vector<std::string> model_homes(const std::vector<std::string>& roots, const std::string& name);

/// Refuses names that could lead out of the repository. Links that lie in it are its owner's and are
/// followed.
void check_model_name(std::string_view name);
/// False for a name that leads out of a repository's directory.
bool stays_inside(std::string_view model_name);

/// <root>/config.pbtxt, or a default configuration. Throws what is wrong with it.
ModelConfig read_config(const std::string& root, const std::string& name);

/// What a load request brings instead of the repository's files.
struct LoadOverride {
  std::optional<std::string> config;         ///< ModelConfig as JSON
  std::map<std::string, std::string> files;  ///< path below the model's directory -> contents
};

/// What the names of directories begin with that hold the files of overrides (base/files/scratch.h).
inline constexpr const char* kOverridePrefix = "trireme-load-";

/// Writes the files of an override to a directory of their own, removed with the last owner. Throws
/// invalid_argument for a path that would lead out of it.
std::shared_ptr<const std::string> write_override(const LoadOverride& load);

/// Version number -> directory, of those that the policy lets serve. Throws invalid_argument if none is left.
std::map<int64_t, std::string> served_versions(const std::string& root, const ModelConfig& config,
                                               const OtherModels& others);

/// Names, sizes and times of all files below a model's directory: changes when they do. Reads no contents. A
/// directory of `others` has their fingerprint.
std::string files_fingerprint(const std::string& root, const OtherModels& others);

}  // namespace trireme::serve
