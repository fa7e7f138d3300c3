// How often a text has seen each token, which penalties ask for: of each sequence, and of draws behind
// guesses.
#pragma once

#include <array>
#include <memory>
#include <span>
#include <vector>

#include "tensor/device.h"

namespace trireme::engine {

class DecodeRanks;
struct DecodePiece;

/// What a draw behind a guess has seen: what the row `from` of the counts has, and the guess, whose count is
/// `count` then.
struct SeenAhead {
  int64_t from = 0, to = 0, token = 0;
  int32_t count = 0;
};

/// Counts of one rank, as count_tokens keeps them: i32 [places, vocabulary] on the device. One owner thread.
class SeenCounts {
 public:
  static constexpr size_t kSlots = 2;  ///< steps that may be under way
  /// `places`: a row for each sequence, and where draws behind guesses count, one for each row of every step
  /// under way; 0: this rank does not draw and keeps nothing. The others outlive it.
  SeenCounts(tensor::Device& device, tensor::Stream& stream, int64_t places, int64_t vocabulary)
      : device_(device), stream_(stream), places_(places), vocabulary_(vocabulary) {}

  int64_t places() const { return places_; }
  /// Where they are; made when first asked for.
  int32_t* memory();
  void set(int64_t place, const std::vector<int32_t>& counts);
  void copy(int64_t from, int64_t to);
  /// One after another, before the step that is launched next into `slot`.
  void see_ahead(std::span<const SeenAhead> rows, size_t slot);

 private:
  int64_t row_bytes() const { return vocabulary_ * static_cast<int64_t>(sizeof(int32_t)); }

  tensor::Device& device_;
  tensor::Stream& stream_;
  const int64_t places_, vocabulary_;
  std::shared_ptr<void> memory_;
  std::array<std::vector<int32_t>, kSlots> ahead_;  ///< counts on their way there, by slot
};

/// The places of draws behind guesses, behind those of sequences. One owner thread.
class CountsAhead {
 public:
  CountsAhead(DecodeRanks& ranks, int64_t most_sequences) : ranks_(ranks), most_sequences_(most_sequences) {}

  /// Of a row of the step in `slot`.
  int32_t place(size_t row, size_t slot) const {
    return static_cast<int32_t>(most_sequences_ * static_cast<int64_t>(1 + slot) + static_cast<int64_t>(row));
  }
  /// Before a step: each draw behind a guess has the counts of the draw before it, and the guess.
  void prepare(std::span<const DecodePiece> pieces, size_t slot);
  /// After it: what row `row` had seen and drew is what the sequence has seen.
  void take(int64_t sequence, size_t row, size_t slot);

 private:
  DecodeRanks& ranks_;
  const int64_t most_sequences_;
};

}  // namespace trireme::engine
