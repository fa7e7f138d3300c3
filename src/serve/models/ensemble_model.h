// A model made of others: runs its steps as their inputs come to be; tensors go from step to step as they
// are.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "serve/models/answer_form.h"
#include "serve/models/served_model.h"

namespace trireme::serve {

class EnsembleModel final : public ServedModel {
 public:
  /// Throws invalid_argument where the steps do not fit together, or a member does not serve.
  EnsembleModel(const ModelSource& source, const ModelHost& host, const ModelMetrics* earlier);

  /// Its deadline, timeout and priority are those of every step, its inputs the first tensors. Throws
  /// unavailable if too many runs are under way.
  void infer(InferRequest request, InferSink sink) override;
  /// True where a step keeps sequences; then the others do not hear of them.
  bool takes_sequences() const override { return takes_sequences_; }
  size_t waiting() const override { return under_way_->runs.load(); }
  /// Returns when no run is under way. Steps of answered runs are not waited for: one may hang.
  void drain() override;
  void stop() override {}  // its steps are their models' to end

 private:
  struct Flow;
  /// What a drain waits for. Steps that are told touch the model too, but only where their run is not over.
  struct UnderWay {
    std::atomic<size_t> runs{0}, steps_told{0};
  };
  EnsembleModel(const ModelSource& source, const ModelConfig& complete, const ModelHost& host,
                const ModelMetrics* earlier);
  static void advance(const std::shared_ptr<Flow>& flow);
  static void start_step(const std::shared_ptr<Flow>& flow, size_t index, InferRequest request);

  const FindModel find_;
  const Border border_;
  const AnswerForm form_;
  const bool takes_sequences_;
  const std::vector<bool> unread_;  ///< by step: no output depends on it, so it never starts
  const std::shared_ptr<UnderWay> under_way_ = std::make_shared<UnderWay>();
};

}  // namespace trireme::serve
