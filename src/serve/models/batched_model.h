// One version of a model, ready to serve: graph, configuration, scheduler, metrics, and its text front if it
// has one.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/env.h"
#include "base/guarded.h"
#include "model/model.h"
#include "sched/scheduler.h"
#include "serve/models/ensemble_model.h"
#include "serve/infer/infer_sink.h"
#include "serve/config/model_config.h"
#include "serve/seeing/model_metrics.h"
#include "serve/config/options.h"
#include "serve/models/response_cache.h"
#include "serve/models/row_answers.h"
#include "serve/models/sequence_batcher.h"
#include "serve/models/string_ports.h"
#include "serve/models/preparing_threads.h"
#include "serve/access/tenants.h"
#include "serve/models/text_encoder.h"

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
  sched::RateLimiter* limiter = nullptr;                 ///< null: resources are not limited
  std::shared_ptr<base::HaltPolling> halt_polling = {};  ///< null: processors halt when they idle
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
  /// True where requests say their sequence.
  bool takes_sequences() const { return sequences_ || (ensemble_ && ensemble_->takes_sequences()); }
  /// Requests of sequences that began on `earlier`, which this one replaces, go on there. Before this one
  /// serves. False where one of them keeps no sequences.
  bool follow(const std::shared_ptr<ServedModel>& earlier);
  /// The reverse; what has not ended there is cut off.
  void let_go_of_earlier();
  /// True while a sequence that began here, or on what this one follows, goes on.
  bool has_sequences() const;
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

  /// Checks and queues a request. Throws for what is wrong with it; later errors go to the sink, and so do
  /// all errors of a model that takes picture files: they are decoded on threads of its own.
  void infer(InferRequest request, InferSink sink);
  /// Runs what waits and refuses what comes.
  void drain();
  /// Refuses what waits and ends the threads; the model is of no use any more. Idempotent.
  void stop();

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
  std::shared_ptr<ServedModel> home_of(const SequenceWish& wish) const;
  void load(const ModelHost& host, const ModelMetrics* earlier);
  void load_ensemble(const ModelHost& host, const ModelMetrics* earlier);
  MetricLabels metric_labels() const;
  void make_metrics(const ModelHost& host, const ModelMetrics* earlier);
  void show_cost(const ModelHost& host, int threads);
  void infer_now(InferRequest request, InferSink sink);
  void infer_prepared(InferRequest request, InferSink sink);
  void infer_ensemble(InferRequest request, InferSink sink);
  void make_text_front(model::Model& model, const ServeOptions& options);
  void complete(const ir::Graph& graph, const ServeOptions& options);
  TensorConfig take_text_input();
  sched::SchedulerOptions scheduler_options(const ModelHost& host);
  void share_machine(sched::SchedulerOptions& out, const RunConfig& run, const ModelHost& host) const;
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
  void answer(Call& call) const;
  void answer_parts(Call& call) const;
  void hand_over(Call& call, InferResponse&& response) const;
  InferResponse head_of(const Call& call) const;
  InferResponse response_of(Call& call) const;
  bool answer_from_cache(sched::Request& part, const StringTable& strings, const std::string& tenant);
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
  bool is_abandoned_ = false;   ///< a thread still uses the scheduler
  int64_t weight_bytes_ = 0;
  std::string kept_outputs_;                             ///< places among the graph's; empty: all
  sched::Padding padding_;                               ///< by pad_buckets; no length buckets: none
  uint64_t load_number_ = 0;                             ///< tells this load from all others
  std::unique_ptr<Ensemble> ensemble_;                   ///< instead of a scheduler
  std::shared_ptr<const SequenceLayout> layout_;         ///< of a sequence model, as the next
  std::unique_ptr<SequenceBatcher> sequences_;           ///< in front of the scheduler
  base::Guarded<std::shared_ptr<ServedModel>> earlier_;  ///< null: none, or its sequences are over
  std::unique_ptr<sched::Scheduler> scheduler_;          ///< its threads use the others
  std::unique_ptr<PreparingThreads> preparing_;          ///< of picture files; last: its threads use all
};

}  // namespace trireme::serve
