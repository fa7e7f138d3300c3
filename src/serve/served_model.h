// One version of a model, ready to serve: graph, configuration, scheduler, metrics, and its text front if it
// has one.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/env.h"
#include "model/model.h"
#include "sched/scheduler.h"
#include "serve/ensemble.h"
#include "serve/infer_sink.h"
#include "serve/kserve_request.h"
#include "serve/kserve_response.h"
#include "serve/model_config.h"
#include "serve/model_metrics.h"
#include "serve/options.h"
#include "serve/response_cache.h"
#include "serve/row_answers.h"
#include "serve/sequence_batcher.h"
#include "serve/string_ports.h"
#include "serve/tenants.h"
#include "serve/text_encoder.h"

namespace trireme::serve {

/// Where a version lies and what its config.pbtxt said (or nothing).
struct ModelSource {
  std::string name, version, path;
  std::string root;  ///< the model's directory: labels are there
  ModelConfig config;
};

/// What models share with their server; all of it outlives them.
struct ModelHost {
  const ServeOptions& options;
  base::Env env;
  MetricRegistry& metrics;
  FindModel find;
  ResponseCache& cache;
  Tenants& tenants;
  sched::RateLimiter* limiter = nullptr;  ///< null: resources are not limited
};

class ServedModel {
 public:
  /// Loads, compiles and warms up; throws what is wrong with the model. `earlier` has the counts of the same
  /// version loaded before, which go on; or null.
  ServedModel(const ModelSource& source, const ModelHost& host, const ModelMetrics* earlier);

  ~ServedModel();
  ServedModel(const ServedModel&) = delete;
  ServedModel& operator=(const ServedModel&) = delete;

  const std::string& name() const { return source_.name; }
  const std::string& version() const { return source_.version; }
  const ModelConfig& config() const { return config_; }
  base::Json metadata(const std::vector<std::string>& versions) const;
  base::Json stats() const;
  std::shared_ptr<ModelMetrics> metrics() const { return metrics_; }
  /// Requests in the queue.
  size_t waiting() const;
  /// False while a batch does not end.
  bool is_well() const;
  /// Weights as the model holds them, and the scratch memory of its instances.
  struct MemoryUse {
    int64_t weight_bytes = 0, scratch_bytes = 0;
  };
  MemoryUse memory() const;
  /// The inputs that the metadata names: of an encoder's alternatives, the text.
  std::vector<TensorConfig> offered_inputs() const;

  /// Checks and queues a request. Throws for what is wrong with it; later errors go to the sink.
  void infer(InferRequest request, InferSink sink);
  /// Runs what waits and refuses what comes.
  void drain();

 private:
  struct Call;
  /// One output that the client gets.
  struct Wish {
    size_t output = 0;
    bool is_binary = false;
    int64_t classification = 0;
    RegionSpan span = {};
  };
  void make_sequences(const ServeOptions& options);
  void load(const ModelHost& host, const ModelMetrics* earlier);
  void load_ensemble(const ModelHost& host, const ModelMetrics* earlier);
  MetricLabels metric_labels() const;
  void make_metrics(const ModelHost& host, const ModelMetrics* earlier);
  void show_cost(const ModelHost& host, int threads);
  void infer_ensemble(InferRequest request, InferSink sink);
  void make_text_front(model::Model& model, const ServeOptions& options);
  void complete(const ir::Graph& graph, const ServeOptions& options);
  sched::SchedulerOptions scheduler_options(const ModelHost& host);
  void set_padding(const ir::Graph& graph);
  std::vector<sched::WarmUp> warm_up(const ServeOptions& options, const std::vector<int64_t>& rows) const;
  std::vector<tensor::Tensor> idle_row() const;
  void watch_scheduler(sched::SchedulerOptions& out, const ModelHost& host);
  void add_warmups(std::vector<sched::WarmUp>& list) const;
  std::vector<TokenGroup> groups_of(InferRequest& request, int64_t& rows) const;
  std::vector<tensor::Tensor> checked_inputs(InferRequest& request, Call& call) const;
  void check_tensor(const WireTensor& got, const TensorConfig& want) const;
  tensor::Dims model_shape(const TensorConfig& config, const tensor::Dims& sent) const;
  tensor::Dims client_shape(const TensorConfig& config, const tensor::Dims& made) const;
  void check_tokens(const std::vector<tensor::Tensor>& inputs) const;
  std::vector<Wish> wishes_of(const InferRequest& request) const;
  void set_times(const InferRequest& request, sched::Request& part) const;
  uint32_t priority_of(const InferRequest& request) const;
  void finish(Call& call) const;
  void answer_parts(Call& call) const;
  void hand_over(Call& call, InferResponse&& response) const;
  InferResponse head_of(const Call& call) const;
  InferResponse response_of(Call& call) const;
  bool answer_from_cache(sched::Request& part, const StringTable& strings);
  void add_output(InferResponse& response, const Wish& wish, WireTensor tensor) const;
  WireTensor wire_output(const Wish& wish, tensor::Tensor values, const StringTable& strings) const;

  ModelSource source_;
  base::Env env_;
  Tenants& tenants_;
  ModelConfig config_;
  int64_t server_timeout_ns_ = 0;  ///< where the config names none
  bool is_deadline_aware_ = false;
  std::vector<int64_t> length_buckets_;  ///< of a text model, at most its longest text
  std::unique_ptr<TextEncoder> text_;    ///< null: tensors only
  int64_t vocab_ = 0;
  StringPorts strings_;
  bool streams_rows_ = false;                     ///< each row of the outputs is an answer
  std::vector<std::vector<std::string>> labels_;  ///< by output
  std::shared_ptr<ModelMetrics> metrics_;
  ResponseCache* cache_ = nullptr;  ///< null: answers are not kept
  /// Instances of this load whose batches do not end, as the gauge of all loads has them.
  struct Hung {
    MetricGauge* gauge;
    std::atomic<int> instances{0};
  };
  std::shared_ptr<Hung> hung_;  ///< null: nobody looks
  int64_t weight_bytes_ = 0;
  sched::Padding padding_;                        ///< by pad_buckets; no length buckets: none
  uint64_t load_number_ = 0;                      ///< tells this load from all others
  std::unique_ptr<Ensemble> ensemble_;            ///< instead of a scheduler
  std::shared_ptr<const SequenceLayout> layout_;  ///< of a sequence model, as the next
  std::unique_ptr<SequenceBatcher> sequences_;    ///< in front of the scheduler
  std::unique_ptr<sched::Scheduler> scheduler_;   ///< last: its threads use the others
};

/// What a rank that follows a served model loads: the same graph, by SessionOptions::model_key.
std::shared_ptr<const engine::PreparedModel> load_to_follow(const std::string& key,
                                                            const OtherModels& others);

}  // namespace trireme::serve
