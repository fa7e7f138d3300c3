// The model repository: loads, reloads and unloads models while the server runs, one change at a time.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/threads/bounded_queue.h"
#include "base/guarded.h"
#include "serve/repository/catalog.h"
#include "serve/repository/repository_files.h"

namespace trireme::serve {

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

  const Tenants& tenants() const { return tenants_; }
  std::shared_ptr<const Catalog> catalog() const { return catalog_.copy(); }
  /// The catalog's index and, in explicit mode, the models that were never loaded (with an empty state).
  std::vector<RepositoryEntry> index() const;
  bool has_failures() const;
  /// Ends changes, then runs what waits in every model.
  void drain();
  /// Ends changes and all models, whatever they are at; for the end.
  void close();

 private:
  void submit(std::function<void()> change, const Done& done);
  void run_changes();
  void stop_changes();
  void poll();
  std::string fingerprint(const std::string& name) const;
  void load_now(const std::string& name, const LoadOverride& given = {});
  void unload_now(const std::string& name);
  /// Models that an ensemble's steps name, as `given` or its directory has them; empty for other models.
  std::vector<std::string> members(const std::string& name, const LoadOverride& given = {}) const;
  /// The same of an ensemble that serves.
  std::vector<std::string> served_members(const std::string& name) const;
  ModelHost host() const;
  void load_members(const std::string& name, const LoadOverride& given);
  void show_metrics(const std::string& name);
  void retry_ensembles(const std::string& member);
  void list_failure(const std::string& name, const std::string& reason);
  CatalogModel load_versions(const std::string& name, const LoadOverride& given);
  CatalogVersion load_version(const ModelSource& source);
  void register_gauges(const MetricLabels& labels, int64_t number);
  /// Puts `next` in the place of a model's entry and lets the old versions finish.
  void replace(const std::string& name, CatalogModel next);
  void retire(std::vector<std::shared_ptr<ServedModel>> old) const;
  /// A version that was replaced and whose sequences go on.
  struct Lingering {
    std::string name;
    std::shared_ptr<ServedModel> old;
    std::weak_ptr<ServedModel> follower;
  };
  void retire_lingering(const std::string& cut);

  const ServeOptions& options_;
  base::Env env_;
  MetricRegistry& metrics_;
  mutable ResponseCache cache_;
  mutable sched::RateLimiter limiter_;
  const std::shared_ptr<base::HaltPolling>
      halt_polling_;  ///< null: not asked for, or somebody else would pay
  mutable Tenants tenants_;
  base::Guarded<std::shared_ptr<const Catalog>> catalog_;
  std::vector<Lingering> lingering_;  ///< oldest first. Repository's thread
  /// Counts by model and version; they go on when a model is loaded again. Repository's thread.
  std::map<std::pair<std::string, std::string>, std::shared_ptr<ModelMetrics>> counts_;
  std::map<std::string, std::string> loaded_files_, seen_files_;  ///< fingerprints, for polling
  std::set<std::string> loading_;  ///< ensembles whose members are being loaded
  base::BoundedQueue<std::function<void()>> changes_{64};
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

}  // namespace trireme::serve
