// What the server holds at one moment: models, their versions and states. A value that is replaced whole.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "serve/models/served_model.h"

namespace trireme::serve {

/// What the index says of one version (or of a model whose versions are not known: version is empty).
struct RepositoryEntry {
  std::string name, version, state, reason;
};

struct CatalogVersion {
  std::shared_ptr<ServedModel> model;  ///< null: does not serve
  std::string state;                   ///< READY, UNAVAILABLE, LOADING or UNLOADING
  std::string reason;
};

struct CatalogModel {
  std::map<int64_t, CatalogVersion> versions;
  std::string state, reason;  ///< where no version is known
  bool is_unloaded = false;   ///< somebody asked for it to go, so requests are told "not found"

  bool serves() const;
};

/// Readers hold one catalog while they look; the repository's thread makes the next one.
struct Catalog {
  std::map<std::string, CatalogModel, std::less<>> models;

  /// A version that serves; an empty version is the highest one. Throws in the words clients' tests look for:
  /// not_found for an unknown or unloaded model or version, unavailable for one that failed to load.
  std::shared_ptr<ServedModel> find(std::string_view name, std::string_view version) const;
  /// Versions of a model that serve, ascending.
  std::vector<std::string> versions(std::string_view name) const;
  std::vector<RepositoryEntry> index() const;
  /// All that serve.
  std::vector<std::shared_ptr<ServedModel>> serving() const;
};

}  // namespace trireme::serve
