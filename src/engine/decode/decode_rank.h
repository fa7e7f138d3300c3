// The part of a decoding session that owns a device: pages, programs by size, results on their way.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/mesh.h"
#include "engine/decode/decode_model.h"
#include "engine/arena.h"
#include "engine/decode/adapter_states.h"
#include "engine/decode/seen_counts.h"
#include "engine/decode/stage_links.h"
#include "engine/pages/kv_pool.h"
#include "lower/inference.h"
#include "lower/program_cache.h"
#include "passes/decode/decode_steps.h"
#include "runtime/executor.h"
#include "runtime/late_results.h"

namespace trireme::engine {

/// The sizes of a step's program: new tokens and sequences, rounded up.
struct DecodeBucket {
  int64_t tokens = 0, sequences = 0;
  auto operator<=>(const DecodeBucket&) const = default;
};

/// The next of 1, 2, 3, 4, 6, 8, 12, 16, 24, ...: at most a third of a step is padding.
int64_t rounded_size(int64_t n);

/// One owner thread. All ranks of a model make the same calls in the same order. Those of the last stage
/// draw, each the same tokens, and those of the first one have them afterwards.
class DecodeRank {
 public:
  /// `options`: threads, cpus and device are this rank's own. `mesh`: the ranks of the model's strategy,
  /// which outlives it; null: there is one.
  DecodeRank(std::shared_ptr<const DecodeModel> model, const DecodeOptions& options, int64_t pages,
             comm::Mesh* mesh = nullptr);
  ~DecodeRank();

  KvPool& pool() const { return *pool_; }
  base::ThreadPool& threads() { return threads_; }
  int64_t arena_bytes() const { return arena_.bytes(); }
  std::string host_operators() const;
  void prepare(passes::DecodeResult result, const DecodeBucket& bucket) { compiled({result, bucket}); }
  /// The program that prepare() made, or null. Changes nothing: ranks keep the same programs.
  const compile::Program* program(passes::DecodeResult result, const DecodeBucket& bucket) const;

  /// What its steps take.
  const passes::DecodeSteps& steps() const { return steps_; }
  /// Runs a step that was prepared to its end; the first rank's logits [sequences, vocabulary] to `logits`,
  /// null on others. `inputs`: of the largest bucket, in the order of passes::DecodeInput and DrawInput.
  void run(const DecodeBucket& bucket, const std::vector<tensor::Tensor>& inputs, tensor::Tensor* logits,
           runtime::Trace* trace);
  /// Launches a step that was prepared and draws into slot `slot` of two; tokens that the step before drew
  /// are those of the other slot.
  void launch(passes::DecodeResult result, const DecodeBucket& bucket,
              const std::vector<tensor::Tensor>& inputs, size_t slot);
  /// What that step drew, once it is done. Throws what it found wrong.
  struct Drawn {
    const int64_t* tokens;
    const float* log_probabilities;
    const int64_t* likeliest;           ///< [sequences, listed_tokens()], where the result includes them
    const float* likeliest_logarithms;  ///< of the same extent
    const float* wanted_logarithms;     ///< [sequences]
  };
  Drawn collect(size_t slot);
  /// Waits until nothing is under way.
  void finish() { stream_->synchronize(); }

  /// The adapter of that slot adds this to a module of the whole model from the next step on.
  void write_adapter(size_t module, int64_t slot, const AdapterFactors& factors);

  /// What its device does, in order.
  tensor::Stream& stream() { return *stream_; }
  /// What its draws count; of no places where its stage does not draw.
  SeenCounts& seen() { return *seen_; }

 private:
  struct Compiled;
  struct Key {
    passes::DecodeResult result;
    DecodeBucket bucket;
    auto operator<=>(const Key&) const = default;
  };
  std::shared_ptr<Compiled> compiled(const Key& key);
  std::shared_ptr<Compiled> prepared(const Key& key);
  std::shared_ptr<Compiled> build(const Key& key);
  void take_inputs(Compiled& program, const std::vector<tensor::Tensor>& inputs, size_t slot);
  void leave(Compiled& program);
  std::vector<void*> states_of(const compile::Program& program);
  const passes::DecodeGraph& form() const { return steps_.form(); }

  std::shared_ptr<const DecodeModel> model_;
  DecodeOptions options_;
  comm::Mesh* mesh_;
  base::ThreadPool threads_;
  std::unique_ptr<tensor::Device> device_;
  std::unique_ptr<tensor::Stream> stream_;
  runtime::DeviceBinding on_;
  Arena arena_;
  std::unique_ptr<KvPool> pool_;
  passes::DecodeSteps steps_;  // of its stage, over this pool
  std::unique_ptr<runtime::LateResults> drawn_;
  std::shared_ptr<Compiled> launched_[2];  // by slot
  std::unique_ptr<SeenCounts> seen_;
  std::unique_ptr<AdapterStates> adapters_;  // null: there is no room for any
  struct {
    std::optional<lower::RankPart> part;  // of several ranks of a stage
    std::unique_ptr<StageLinks> links;    // null: there are no stages
    tensor::Tensor unread;                // logits on other ranks than the first
  } group_;
  lower::ProgramCache<Key, std::shared_ptr<Compiled>> compiled_;
};

}  // namespace trireme::engine
