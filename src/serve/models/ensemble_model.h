// Runs the steps of an ensemble as their inputs come to be; tensors go from step to step as they are.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "serve/infer/infer_sink.h"
#include "serve/config/model_config.h"

namespace trireme::serve {

class ServedModel;

/// A version that serves, by name and version (empty: the highest). Throws like Catalog::find.
using FindModel =
    std::function<std::shared_ptr<ServedModel>(const std::string& name, const std::string& version)>;

class Ensemble {
 public:
  /// Throws invalid_argument where the steps do not fit together, or a member does not serve.
  Ensemble(const ModelConfig& config, FindModel find);

  using Tensors = std::map<std::string, WireTensor>;
  /// What becomes of a run: all of the ensemble's outputs, or the first error. One of them, on any thread.
  struct Sink {
    std::function<void(Tensors&&)> done;
    std::function<void(const base::Error&, sched::Ending)> failed;
    std::function<bool()> cancelled;
    int64_t received_ns = 0;
  };
  /// `request` gives deadline, timeout and priority to every step; its inputs are the first tensors. Throws
  /// unavailable if too many runs are under way.
  void run(InferRequest request, Sink sink);
  /// Returns when no run is under way.
  void drain() const;
  size_t running() const { return running_->load(); }
  /// True where a step keeps sequences; then the others do not hear of them.
  bool takes_sequences() const { return takes_sequences_; }

 private:
  struct Flow;
  static void advance(const std::shared_ptr<Flow>& flow);
  static void start_step(const std::shared_ptr<Flow>& flow, size_t index, InferRequest request);
  void check_members(const ModelConfig& config);

  std::shared_ptr<const EnsembleConfig> config_;
  std::vector<std::string> outputs_;
  FindModel find_;
  bool takes_sequences_ = false;
  std::shared_ptr<std::atomic<size_t>> running_ = std::make_shared<std::atomic<size_t>>(0);
};

}  // namespace trireme::serve
