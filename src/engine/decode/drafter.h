// Who guesses how texts go on, so that one step of the model can check several tokens of a text at once.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/decode/draw_form.h"
#include "engine/decode/sampling.h"

namespace trireme::engine {

/// A text whose next tokens are to be guessed.
struct DraftWish {
  int64_t text = 0;                           ///< its number
  std::span<const int64_t> tokens;            ///< prompt and answer so far, at least one
  const SamplingOptions* sampling = nullptr;  ///< of its draws; without penalties
  std::span<const TokenBias> biases;
  int64_t position = 0;                    ///< number of the next draw
  int64_t most = 1;                        ///< so many tokens are wanted at most
  std::vector<int64_t>* drafts = nullptr;  ///< where they go; empty
};

/// Drafts are guesses: whatever they are, answers stay the same, only sooner or later. One owner thread.
class Drafter {
 public:
  virtual ~Drafter() = default;
  /// Guesses for all texts at once; some may get fewer tokens than they wish, or none.
  virtual void draft(std::span<const DraftWish> wishes) = 0;
  /// The text is over, or begins again.
  virtual void forget(int64_t text) = 0;
  /// Whether a draft costs steps of a model: then as many tokens are asked for as will be checked. Else
  /// drafts cost next to nothing, and it shows only afterwards which texts have any.
  virtual bool runs_steps() const = 0;
  /// Memory that is held for drafts beside the model's.
  virtual int64_t memory_bytes() const = 0;
};

}  // namespace trireme::engine
