// The model repository: which models and versions a directory holds, and what became of each.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "serve/served_model.h"

namespace trireme::serve {

/// What the index says of one version (or of a model whose versions could not be found: version is empty).
struct RepositoryEntry {
  std::string name, version, state, reason;
};

/// Layout: <root>/<model>/[config.pbtxt], with <version>/ directories (integers above 0) or the model's files
/// beside the config, which then are version 1. Immutable after load(); any thread may read.
class Repository {
 public:
  Repository(const ServeOptions& options, const base::Env& env, MetricRegistry& metrics);

  /// Loads every model. One that fails is listed with its reason; the others go on. Throws not_found only if
  /// the root is no directory.
  void load();

  /// A version that serves; an empty version is the highest one. Throws in the words clients' tests look for:
  /// not_found for an unknown model or version, unavailable for one that failed to load.
  std::shared_ptr<ServedModel> find(std::string_view name, std::string_view version) const;
  /// Versions of a model that serve, ascending.
  std::vector<std::string> versions(std::string_view name) const;
  std::vector<RepositoryEntry> index() const;
  std::vector<std::shared_ptr<ServedModel>> models() const;
  bool has_failures() const;
  void drain();

 private:
  struct Version {
    std::shared_ptr<ServedModel> model;  ///< null: failed
    std::string reason;
  };
  using Versions = std::map<int64_t, Version>;
  void load_model(const std::string& name, Versions& versions);
  Version load_version(const ModelSource& source);

  const ServeOptions& options_;
  base::Env env_;
  MetricRegistry& metrics_;
  std::map<std::string, Versions, std::less<>> models_;
  std::map<std::string, std::string, std::less<>> broken_;  ///< models without a version: name -> reason
};

}  // namespace trireme::serve
