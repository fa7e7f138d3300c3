// What KServe clients can ask of the server, whatever wire it comes over: HTTP and gRPC are two forms of
// this.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/report/env.h"
#include "serve/access/access.h"
#include "serve/repository/repository.h"
#include "serve/core/shared_regions.h"
#include "serve/seeing/tracer.h"

namespace trireme::serve {

enum class ServerState : uint8_t { loading, serving, draining };

/// Any thread; nothing here blocks (loads answer later). Errors are thrown as base::Error. JSON is in the
/// form of the protocol, whose names are those of the protobuf messages too.
class KserveCore {
 public:
  KserveCore(Repository& repository, const ServeOptions& options, const base::Env& env);

  void set_state(ServerState state) { state_ = state; }
  /// Takes requests now: not while loading or draining, nor, if so told, while a model has failed.
  bool is_ready() const;
  /// HTTP status of a call that asks whether something is ready that is not.
  int unready_status() const { return options_.unready_status; }
  bool is_draining() const { return state_.load() == ServerState::draining; }
  /// Throws unavailable while the models are loading: until then only health can be asked.
  void require_loaded() const;

  base::Json server_metadata() const;
  /// A version that serves; an empty version is the highest one. Throws like Catalog::find.
  std::shared_ptr<ServedModel> find(const std::string& name, const std::string& version) const;
  /// Whether find() would give one.
  bool is_served(const std::string& name, const std::string& version) const;
  /// All versions that serve.
  std::vector<std::shared_ptr<ServedModel>> serving() const;
  base::Json metadata(const std::string& name, const std::string& version) const;
  /// `{"model_stats":[...]}`, of one version; of all that serve, for an empty version; of all models, for an
  /// empty name.
  base::Json statistics(const std::string& name, const std::string& version) const;
  /// The index as an array, without what does not serve if so asked.
  base::Json index(bool ready_only) const;

  /// The settings after applying `changes`, an object or null.
  base::Json log_settings(const base::Json& changes) const;
  /// Of the server or, if named, of a model.
  base::Json trace_settings(const std::string& model, const base::Json& changes) const;

  /// `parameters`: an object or null. `done` comes when it is done; what is refused at once is thrown.
  void load(const std::string& name, const base::Json& parameters, Repository::Done done) const;
  void unload(const std::string& name, const base::Json& parameters, Repository::Done done) const;

  void change_adapter(AdapterChange change, Repository::Done done) const;

  /// Checks and queues a request; outputs that belong into shared memory are written there.
  void infer(const std::shared_ptr<ServedModel>& model, InferRequest request, InferSink sink) const;

  const base::Clock& clock() const { return env_.clock; }
  int64_t now_ns() const { return env_.clock.now_ns(); }
  /// Seconds since 1970: now, and when the server began.
  int64_t wall_s() const { return env_.clock.wall_ns() / base::kNsPerSecond; }
  int64_t started_s() const { return started_s_; }
  /// The regions of those who share the word that a tenant's header holds; empty: nobody is told apart.
  SharedRegions& regions(const std::string& tenant) const { return tenant_regions_->of(tenant); }
  const Tenants& tenants() const { return repository_.tenants(); }
  const AccessRules& rules() const { return rules_; }
  const ApiKeys& keys() const { return repository_.keys(); }
  const Tracer& tracer() const { return *tracer_; }

 private:
  Repository& repository_;
  const ServeOptions& options_;
  base::Env env_;
  const AccessRules rules_;
  std::unique_ptr<TenantRegions> tenant_regions_;
  std::unique_ptr<Tracer> tracer_;
  const int64_t started_s_;
  std::atomic<ServerState> state_{ServerState::loading};
};

}  // namespace trireme::serve
