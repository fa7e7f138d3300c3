// The model repository: loads, reloads and unloads models while the server runs, one change at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/guarded.h"
#include "serve/repository/catalog.h"
#include "serve/repository/change_thread.h"
#include "serve/repository/file_watch.h"
#include "serve/repository/old_versions.h"
#include "serve/repository/repository_files.h"

namespace trireme::serve {

/// An adapter of a language model that is to come or to go.
struct AdapterChange {
  std::string model, adapter;
  std::string path;  ///< its directory, in a repository: absolute, or below the model's; empty: it goes
};

/// Layout: <root>/<model>/[config.pbtxt], with <version>/ directories (integers above 0) or the model's files
/// beside the config, which then are version 1. Any thread may read and ask for changes; one thread of its
/// own makes them. A change is a new catalog: requests see the old model or the new one, never neither.
class Repository {
 public:
  using Done = std::function<void(const std::optional<base::Error>&)>;

  Repository(const ServeOptions& options, const base::Env& env, MetricRegistry& metrics);
  ~Repository();
  Repository(const Repository&) = delete;
  Repository& operator=(const Repository&) = delete;

  /// Loads what the mode says (all models, or those named), then starts the thread. A model that fails is
  /// listed with its reason; the others go on. Throws not_found if the root is no directory.
  void load();

  /// Loads or reloads a model. The new versions are complete before the old ones stop; a reload that fails
  /// leaves the old ones. `done` comes on the repository's thread, once the old versions' memory is free, but
  /// for those whose sequences go on. Throws unavailable unless the mode is explicit. `given` replaces the
  /// model's config, or config and files, until the next load.
  void request_load(const std::string& name, LoadOverride given, Done done);
  /// Stops a model after what it had accepted; an unknown name is no error.
  /// `with_members`: those of an ensemble too.
  void request_unload(const std::string& name, bool with_members, Done done);

  /// Loads or unloads an adapter of a model that serves, in the same modes. Unloading lets texts that began
  /// with it end.
  void request_adapter(AdapterChange change, Done done);

  const Tenants& tenants() const;
  ApiKeys& keys() const;
  std::shared_ptr<const Catalog> catalog() const { return catalog_.copy(); }
  /// The catalog's index and, in explicit mode, the models that were never loaded (with an empty state).
  std::vector<RepositoryEntry> index() const;
  bool has_failures() const;
  /// Ends changes, then runs what waits in every model.
  void drain();
  /// Ends changes and all models, whatever they are at; for the end.
  void close();

 private:
  struct Shared;
  void submit(std::function<void()> change, const Done& done);
  int64_t look();
  void poll();
  void load_now(const std::string& name, const LoadOverride& given = {});
  void unload_now(const std::string& name);
  ModelHost host() const;
  void load_members(const std::string& name, const LoadOverride& given);
  void retry_ensembles(const std::string& member);
  void list_failure(const std::string& name, const std::string& reason);
  CatalogModel load_versions(const std::string& name, const LoadOverride& given);
  CatalogVersion load_version(const ModelSource& source);
  void register_gauges(const MetricLabels& labels, int64_t number);
  /// Puts `next` in the place of a model's entry and lets the old versions finish.
  void replace(const std::string& name, CatalogModel next);

  const ServeOptions& options_;
  base::Env env_;
  MetricRegistry& metrics_;
  const std::unique_ptr<Shared> shared_;  ///< by the models
  base::Guarded<std::shared_ptr<const Catalog>> catalog_;
  // Of the thread that makes changes, and of the start before it:
  OldVersions old_;
  /// Counts by model and version; they go on when a model is loaded again.
  std::map<std::pair<std::string, std::string>, std::shared_ptr<ModelMetrics>> counts_;
  FileWatch files_;
  int64_t next_poll_ns_ = INT64_MAX;  ///< never, unless files decide
  std::set<std::string> loading_;     ///< ensembles whose members are being loaded
  ChangeThread changes_;
};

}  // namespace trireme::serve
