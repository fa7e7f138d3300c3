// One version of a model that serves: what every kind of model answers, whatever it computes and however.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/report/env.h"
#include "base/machine/halt_polling.h"
#include "sched/rate_limiter.h"
#include "serve/access/tenants.h"
#include "serve/config/model_config.h"
#include "serve/config/options.h"
#include "serve/infer/infer_sink.h"
#include "serve/models/response_cache.h"
#include "serve/seeing/model_metrics.h"

namespace trireme::engine {
class PageStore;
}

namespace trireme::serve {

class ServedModel;
class TextModel;

/// Where a version lies and what its config.pbtxt said (or nothing).
struct ModelSource {
  std::string name, version, path;
  std::string root;  ///< the model's directory: labels are there
  ModelConfig config;
};

/// A version that serves, by name and version (empty: the highest). Throws like Catalog::find.
using FindModel =
    std::function<std::shared_ptr<ServedModel>(const std::string& name, const std::string& version)>;

/// What models share with their server; all of it outlives them.
struct ModelHost {
  const ServeOptions& options;
  base::Env env;
  MetricRegistry& metrics;
  FindModel find;
  ResponseCache& cache;
  Tenants& tenants;
  sched::RateLimiter* limiter = nullptr;                 ///< null: resources are not limited
  std::shared_ptr<base::HaltPolling> halt_polling = {};  ///< null: processors halt when they idle
  std::shared_ptr<engine::PageStore> pages = {};         ///< null: nothing is kept of what texts give up
  /// Told of a model's metrics once they are registered, also if its load fails afterwards: the next one must
  /// go on with them, because a series keeps reading what it was registered with.
  std::function<void(const std::shared_ptr<ModelMetrics>&)> keep_metrics = {};
};

/// Any thread. Protocols and the repository know models by this alone; kinds derive from it, and
/// the repository's load_served_model() chooses between them.
class ServedModel {
 public:
  virtual ~ServedModel() = default;
  ServedModel(const ServedModel&) = delete;
  ServedModel& operator=(const ServedModel&) = delete;

  const std::string& name() const { return source_.name; }
  const std::string& version() const { return source_.version; }
  const ModelConfig& config() const { return config_; }
  const base::Clock& clock() const { return env_.clock; }
  Tenants& tenants() const { return tenants_; }
  const std::shared_ptr<ModelMetrics>& metrics() const { return metrics_; }
  base::Json metadata(const std::vector<std::string>& versions) const;
  base::Json stats() const;
  /// The inputs that the metadata names: of alternatives one, so that what it says is one valid request.
  virtual std::vector<TensorConfig> offered_inputs() const { return config_.inputs; }

  /// Checks a request and begins with it. Throws for what is wrong with it; later errors go to the sink.
  virtual void infer(InferRequest request, InferSink sink) = 0;
  /// What protocols of language models ask; null: it continues no texts.
  virtual TextModel* texts() { return nullptr; }
  /// True where requests say their sequence.
  virtual bool takes_sequences() const { return false; }

  /// Requests that wait.
  virtual size_t waiting() const = 0;
  /// False while it does not answer though it should.
  virtual bool is_well() const { return true; }
  /// Weights as the model holds them, and the scratch memory of its instances.
  struct MemoryUse {
    int64_t weight_bytes = 0, scratch_bytes = 0;
  };
  virtual MemoryUse memory() const { return {}; }

  /// Called before this one serves in the place of `earlier`: what has begun there and needs further requests
  /// goes on there. False where nothing does, so that `earlier` may go.
  virtual bool follow(const std::shared_ptr<ServedModel>& /*earlier*/) { return false; }
  /// The reverse; what has not ended there is cut off.
  virtual void let_go_of_earlier() {}
  /// True while something that has begun here, or on what this one follows, needs further requests.
  virtual bool is_needed() const { return false; }
  /// Runs what waits and refuses what comes. A step of a language model that hangs is not waited for.
  virtual void drain() = 0;
  /// Refuses what waits and ends the threads; the model is of no use any more. Idempotent.
  virtual void stop() = 0;

 protected:
  /// `config` is complete. `earlier` has the counts of the same version loaded before, which go on; or null.
  /// `instances`: whose time is counted.
  ServedModel(ModelSource source, ModelConfig config, const ModelHost& host, const ModelMetrics* earlier,
              int instances);
  const ModelSource& source() const { return source_; }
  const base::Env& env() const { return env_; }
  MetricLabels metric_labels() const;

 private:
  const ModelSource source_;
  const base::Env env_;
  Tenants& tenants_;
  const ModelConfig config_;
  std::shared_ptr<ModelMetrics> metrics_;
};

}  // namespace trireme::serve
