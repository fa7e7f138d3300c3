// A language model that keeps its sequences: takes their new tokens in ragged batches and gives the logits of
// the next ones.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/graph_runner.h"
#include "engine/kv_pool.h"
#include "passes/decode.h"

namespace trireme::engine {

struct DecodeOptions {
  std::string device = "cpu";  ///< as runtime::open_device() takes it
  bool host_fallback = true;   ///< nodes that the device has no kernel for run on the CPU
  bool graphs = true;          ///< a device's launches are recorded once and replayed
  int threads = 0;             ///< 0: all cores this process may use
  std::vector<int> cpus = {};
  passes::Precision precision = passes::Precision::f32;  ///< of products
  tensor::DType cache_type = tensor::DType::f32;         ///< of keys and values: f32, bf16 or f16
  int64_t page_tokens = 16;
  int64_t cache_bytes = 0;     ///< of all pages; 0: cache_share of what is free, at most what can be used
  double cache_share = 0.5;    ///< of the device's memory, or of what this process may use
  int64_t max_sequences = 64;  ///< open at a time, and in one step
  int64_t max_tokens = 512;    ///< new tokens of one step
  int64_t max_length = 0;      ///< tokens of a sequence; 0: as many as the model's positions allow
  size_t max_programs = 64;    ///< compiled sizes kept
};

/// A model in the form for decoding, after the passes that do not depend on sizes. Immutable but for the
/// cache of packed weights; sessions of one model share it.
class DecodeModel {
 public:
  /// `graph`: input_ids [batch, seq] -> logits, see passes::decode_form(). Throws unsupported for others.
  explicit DecodeModel(const ir::Graph& graph, const DecodeOptions& options = {});
  const passes::DecodeGraph& form() const { return form_; }
  base::SharedCache& packs() const { return packs_; }

 private:
  passes::DecodeGraph form_;
  mutable base::SharedCache packs_;
};

using SequenceId = int32_t;

/// New tokens of one sequence in a step: a prompt, a part of it, or the token chosen last.
struct DecodePiece {
  SequenceId sequence = 0;
  std::span<const int64_t> tokens;
};

/// One owner thread. The logits of a sequence do not depend on what else is in the batch, nor on how its
/// tokens were cut into steps, nor on the number of threads: bit for bit on the CPU. On a GPU that holds for
/// the operators of this project; the library behind matrix products may choose another sum order for another
/// number of rows.
class DecodeSession {
 public:
  /// `options` must agree with the model's in cache_type, page_tokens and max_length.
  DecodeSession(std::shared_ptr<const DecodeModel> model, const DecodeOptions& options = {});
  ~DecodeSession();

  /// A new sequence of no tokens. Throws exhausted if max_sequences are open.
  SequenceId open();
  /// A sequence with the tokens of another, whose full pages both hold. Throws exhausted.
  SequenceId fork(SequenceId from);
  /// Gives its pages back.
  void close(SequenceId id);
  int64_t length(SequenceId id) const { return sequence(id).length; }
  /// Pages that `tokens` more would take.
  int64_t pages_for(SequenceId id, int64_t tokens) const;
  const KvPool& pool() const { return *pool_; }
  int64_t max_length() const { return max_length_; }
  int64_t vocabulary() const { return model_->form().vocabulary; }
  const DecodeOptions& options() const { return options_; }

  /// Runs the pieces, each of another sequence and not empty. Row i of the result [pieces, vocabulary] holds
  /// the logits behind the last token of piece i, until the next step. Throws invalid_argument for what does
  /// not fit max_tokens, max_sequences or max_length, exhausted if pages run out: then nothing has changed.
  /// Allocates nothing once a step of these sizes has run.
  std::span<const float> step(std::span<const DecodePiece> pieces, runtime::Trace* trace = nullptr);

  /// The sizes of a step's program: new tokens and sequences, rounded up.
  struct Bucket {
    int64_t tokens = 0, sequences = 0;
    auto operator<=>(const Bucket&) const = default;
  };
  Bucket bucket(int64_t tokens, int64_t sequences) const;
  /// Compiles a bucket's program now, so that the first step of its size does not wait.
  const compile::Program& prepare(const Bucket& bucket);
  int64_t arena_bytes() const { return arena_.bytes(); }
  std::string host_operators() const;
  base::ThreadPool& threads() { return threads_; }

 private:
  struct Sequence {
    bool is_open = false;
    int64_t length = 0;
    std::vector<int32_t> pages;  // room for the longest sequence
  };
  struct Compiled;
  const Sequence& sequence(SequenceId id) const;
  Sequence& sequence(SequenceId id) { return const_cast<Sequence&>(std::as_const(*this).sequence(id)); }
  void check(std::span<const DecodePiece> pieces) const;
  void take_pages(std::span<const DecodePiece> pieces);
  void fill(std::span<const DecodePiece> pieces, const Bucket& bucket);
  Compiled& compiled(const Bucket& bucket);

  std::shared_ptr<const DecodeModel> model_;
  DecodeOptions options_;
  base::ThreadPool threads_;
  std::unique_ptr<tensor::Device> device_;
  std::unique_ptr<tensor::Stream> stream_;
  runtime::DeviceBinding on_;
  Arena arena_;
  std::unique_ptr<KvPool> pool_;
  ir::Graph graph_;  // over this pool
  int64_t max_length_ = 0;
  std::vector<Sequence> sequences_;
  std::vector<tensor::Tensor> inputs_;  // of the largest bucket, in the order of passes::DecodeInput
  tensor::Tensor logits_;               // [max_sequences, vocabulary]
  std::map<Bucket, std::unique_ptr<Compiled>> compiled_;
  uint64_t clock_ = 0;
};

}  // namespace trireme::engine
