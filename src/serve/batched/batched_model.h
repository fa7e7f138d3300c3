// A model whose requests are batched: tensors through a scheduler's queue, several requests' rows in one run.
#pragma once

#include <memory>
#include <vector>

#include "base/guarded.h"
#include "sched/ordered_release.h"
#include "serve/models/answer_form.h"
#include "serve/batched/batched_parts.h"
#include "serve/models/call.h"
#include "serve/models/preparing_threads.h"
#include "serve/models/queue_rules.h"
#include "serve/batched/scheduler_setup.h"

namespace trireme::serve {

class BatchedModel final : public ServedModel {
 public:
  /// Loads, compiles and warms up; throws what is wrong with the model.
  BatchedModel(const ModelSource& source, const ModelHost& host, const ModelMetrics* earlier);
  ~BatchedModel() override;

  std::vector<TensorConfig> offered_inputs() const override;
  /// All errors of a model that takes picture files go to the sink: they are decoded on threads of its own.
  void infer(InferRequest request, InferSink sink) override;
  bool takes_sequences() const override { return sequences_ != nullptr; }
  size_t waiting() const override;
  bool is_well() const override { return scheduler_->stats().hung == 0; }
  MemoryUse memory() const override;
  bool follow(const std::shared_ptr<ServedModel>& earlier) override;
  void let_go_of_earlier() override;
  bool is_needed() const override;
  void drain() override;
  void stop() override;

 private:
  struct Work;
  BatchedModel(BatchedParts parts, const ModelSource& source, const ModelHost& host,
               const ModelMetrics* earlier);
  void make_scheduler(sched::SchedulerOptions options);
  std::shared_ptr<BatchedModel> home_of(const SequenceWish& wish) const;
  void prepare(const std::shared_ptr<Work>& work, InferRequest request);
  void start(const std::shared_ptr<Work>& work, InferRequest request);
  std::vector<sched::Request> parts_of(InferRequest& request, Work& work) const;
  std::vector<tensor::Tensor> enter(CheckedInputs inputs, Work& work) const;
  bool answer_from_cache(Work& work, size_t index, const sched::Request& part, const std::string& tenant);
  void end_part(Work& work, size_t index, sched::Outcome&& outcome) const;
  void finish(Work& work) const;
  void fail(Work& work, const sched::Outcome& outcome) const;
  void give_rows(Work& work) const;
  InferResponse response_of(Work& work) const;
  WireTensor leave(size_t output, tensor::Tensor values, const StringTable& strings) const;

  BatchedParts parts_;  ///< what is not handed on to those below
  const Border border_;
  const AnswerForm form_;
  const QueueRules queue_rules_;
  const bool streams_rows_;         ///< each row of the outputs is an answer
  ResponseCache* cache_ = nullptr;  ///< null: answers are not kept
  /// Of answers, kept ones among them; null: nothing is kept, or order does not matter.
  std::unique_ptr<sched::OrderedRelease> order_;
  SchedulerWatch watch_;
  bool is_abandoned_ = false;                             ///< a thread still uses the scheduler
  std::unique_ptr<SequenceBatcher> sequences_;            ///< in front of the scheduler; null: none
  base::Guarded<std::shared_ptr<BatchedModel>> earlier_;  ///< null: none, or its sequences are over
  std::unique_ptr<sched::Scheduler> scheduler_;           ///< its threads use the others
  std::unique_ptr<PreparingThreads> preparing_;           ///< of picture files; last: its threads use all
};

}  // namespace trireme::serve
