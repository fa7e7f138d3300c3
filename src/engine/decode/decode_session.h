// A language model that keeps its sequences: takes their new tokens in ragged batches and gives the logits of
// the next ones, or draws them.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/decode/decode_ranks.h"
#include "engine/decode/draw_form.h"
#include "engine/decode/sampling.h"
#include "engine/decode/sequences.h"

namespace trireme::engine {

/// New tokens of one sequence in a step: a prompt, a part of it, or the token chosen last.
struct DecodePiece {
  SequenceId sequence = 0;
  std::span<const int64_t> tokens;
  /// Instead of `tokens`: the one token that row `chosen` of the step launched last draws.
  int32_t chosen = -1;
  /// Of steps that draw: how the next token is chosen, and the number of the draw. Null: it is not wanted,
  /// the prompt goes on.
  const SamplingOptions* sampling = nullptr;
  int64_t position = 0;
  /// Of steps that draw: what else may not come (a bit a token, as TokenFilter::mask() has it; of no words:
  /// all may), biases (at most passes::kMostBiases, each of another token), and whether the likeliest tokens
  /// are wanted, too.
  std::span<const uint64_t> allowed = {};
  /// Of a piece that draws behind each of its tokens: the same of the draws but the first, one behind another
  /// and equally long; empty: `allowed` holds for them, too.
  std::span<const uint64_t> allowed_behind = {};
  /// Of a piece that draws behind each of its tokens, with penalties: as see() would count each of `tokens`
  /// but the first once it has come.
  std::span<const int32_t> seen_behind = {};
  std::span<const TokenBias> biases = {};
  bool lists = false;
  /// The tokens that come behind each of `tokens`, or behind each but the last: the logarithms of their
  /// probabilities are wanted. Takes a row of the step for each of `tokens`, the last one's is the piece's
  /// own.
  std::span<const int64_t> scored = {};
  /// Of steps that draw: there is a draw behind each of `tokens`, the first with the number `position`, and
  /// each of the others with the next. Takes rows like `scored`, which such a piece has none of.
  bool draws_each = false;

  /// Rows of the step behind those of all pieces.
  int64_t more_rows() const {
    return scored.empty() && !draws_each ? 0 : static_cast<int64_t>(tokens.size()) - 1;
  }
  int64_t size() const { return chosen >= 0 ? 1 : static_cast<int64_t>(tokens.size()); }
};

/// One owner thread. The logits of a sequence do not depend on what else is in the batch, nor on how its
/// tokens were cut into steps, nor on the number of threads: bit for bit on the CPU. On a GPU that holds for
/// the operators of this project; the library behind matrix products may choose another sum order for another
/// number of rows.
class DecodeSession {
 public:
  using Bucket = DecodeBucket;

  /// `options` must agree with the model's in cache_type, page_tokens, max_length, weights and strategy. With
  /// several ranks each step is their sum: the bits are those of one rank only where no sum is split.
  DecodeSession(std::shared_ptr<const DecodeModel> model, const DecodeOptions& options = {});
  ~DecodeSession();

  /// A new sequence of no tokens. Throws exhausted if max_sequences are open. `origin`: its adapter runs
  /// beside the model's weights for all its tokens, and is held by the caller until the sequence is closed.
  SequenceId open(const TextOrigin& origin = {});
  /// A new sequence that will begin with `prompt`: holds the pages of the longest beginning of it that is
  /// known from keep(), and has its length then; at least one token of the prompt is left to run. The logits
  /// are the same as if all had run, on the CPU to the bit. Beginnings are known by adapter and salt.
  SequenceId open(std::span<const int64_t> prompt, const TextOrigin& origin = {});
  using Beginning = Sequences::Beginning;
  Beginning look(std::span<const int64_t> prompt, const TextOrigin& origin = {}) {
    return sequences_->look(prompt, origin);
  }
  /// Remembers the full pages of a sequence for others that begin so; `tokens`: what it ran, or the first of
  /// it. Does nothing without DecodeOptions::share_prefixes.
  void keep(SequenceId id, std::span<const int64_t> tokens) { sequences_->keep(id, tokens); }
  /// Pages that are free, or only remembered.
  int64_t free_pages() const { return known_->free_pages(); }
  /// What open() finds.
  KnownBeginnings& beginnings() { return *known_; }
  /// A sequence with the tokens of another, whose full pages both hold. Throws exhausted.
  SequenceId fork(SequenceId from);
  /// Gives its pages back.
  void close(SequenceId id) { sequences_->close(id); }
  /// Takes tokens back from the end of a sequence that others do not share: it has `length` of them then.
  void shrink(SequenceId id, int64_t length) { sequences_->shrink(id, length); }
  int64_t length(SequenceId id) const { return sequences_->at(id).length; }
  /// The content of a full page of the sequence, by its number there.
  std::shared_ptr<const PageBytes> copy_of_page(SequenceId id, int64_t number);
  /// Pages that `tokens` more would take.
  int64_t pages_for(SequenceId id, int64_t tokens) const { return sequences_->pages_for(id, tokens); }
  const KvPool& pool() const { return ranks_->first().pool(); }
  int64_t max_length() const { return max_length_; }
  int64_t vocabulary() const { return model_->form().vocabulary; }
  const DecodeOptions& options() const { return options_; }
  /// How many steps may be launched before the oldest is collected: 2 where one device works meanwhile, else
  /// 1.
  int depth() const { return depth_; }

  /// Runs the pieces, each of another sequence and not empty. Row i of the result [pieces, vocabulary] holds
  /// the logits behind the last token of piece i, until the next step. Throws invalid_argument for what does
  /// not fit max_tokens, max_sequences or max_length, exhausted if pages run out: then nothing has changed.
  /// Allocates nothing once a step of these sizes has run.
  std::span<const float> step(std::span<const DecodePiece> pieces, runtime::Trace* trace = nullptr);

  /// The same with draws instead of logits; collect() gives them. At most depth() steps are launched and not
  /// collected.
  void launch(std::span<const DecodePiece> pieces);
  /// What row i of a step drew: tokens, and the natural logarithms of their probabilities among all that may
  /// come, after biases, before penalties and cuts. NaN where all logits are minus infinity or no numbers.
  struct Drawn {
    std::span<const int64_t> tokens;
    std::span<const float> log_probabilities;
    /// The likeliest `listed` tokens of each row, the likeliest first; empty where no row wanted them.
    std::span<const int64_t> likeliest;
    std::span<const float> likeliest_logarithms;
    size_t listed = 0;
    /// Of the tokens that pieces score. Rows behind tokens but a piece's last, for scores and for draws,
    /// stand behind the rows of all pieces, in their order.
    std::span<const float> scored_logarithms;
  };
  /// Waits for the oldest step that was launched; its draws, until the second launch() from here. Throws what
  /// kernels found wrong.
  Drawn collect();
  /// Tells of the prompt of a sequence that is drawn with penalties, and of the answer's tokens that are
  /// there already; once and before it is run.
  void see(SequenceId id, std::span<const int64_t> prompt, std::span<const int64_t> answer);
  /// Of the step collected last, row `row` was the last draw of the sequence that counts, and stood behind a
  /// guess: the sequence has seen what that draw had, and the token drawn.
  void take_seen(SequenceId id, size_t row);

  Bucket bucket(int64_t tokens, int64_t sequences) const;
  /// Compiles a bucket's program now, so that the first step of its size does not wait.
  const compile::Program& prepare(const Bucket& bucket,
                                  passes::DecodeResult result = passes::DecodeResult::logits);
  /// The ranks that run its steps.
  DecodeRanks& ranks() { return *ranks_; }

 private:
  void check(std::span<const DecodePiece> pieces) const;

  std::shared_ptr<const DecodeModel> model_;
  DecodeOptions options_;
  std::unique_ptr<DecodeRanks> ranks_;
  std::unique_ptr<KnownBeginnings> known_;
  std::unique_ptr<Sequences> sequences_;  // over the first rank's pages
  std::unique_ptr<CountsAhead> ahead_;
  int64_t max_length_ = 0;
  int depth_ = 1;
  std::vector<tensor::Tensor> inputs_;  // of the largest bucket, in the order of DecodeInput and DrawInput
  tensor::Tensor logits_;               // [max_sequences, vocabulary]
  struct {
    int64_t launched = 0, collected = 0;
    struct {
      size_t rows = 0;
      bool lists = false;
    } of_slot[2];
  } steps_;  // under way
};

}  // namespace trireme::engine
