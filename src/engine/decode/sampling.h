// How the next token is chosen from logits: options of one sequence.
#pragma once

#include <cstdint>

#include "base/text/options.h"

namespace trireme::engine {

/// The steps happen in this order; the defaults leave each out but the temperature, which 0 turns into the
/// most likely token. Draws are Philox(seed; number of the token): they depend on nothing but the logits and
/// how many came before. Ties go to the lower id; logits of NaN are never chosen. What computes them is the
/// operator sample_tokens.
struct SamplingOptions {
  /// Numbers of one row for sample_tokens, with penalties.
  static constexpr int64_t kNumbers = 7;

  double repetition_penalty = 1;  ///< logits of tokens that occurred: divided by it, or multiplied below 0
  double presence_penalty = 0;    ///< taken from logits of tokens that were generated
  double frequency_penalty = 0;   ///< the same for every time
  double temperature = 1;
  int64_t top_k = 0;
  double top_p = 1;
  double min_p = 0;
  int64_t seed = 0;

  void fields(base::OptionList& f);
  /// Throws invalid_argument for numbers out of range.
  void check() const;
  bool has_penalties() const {
    return repetition_penalty != 1 || presence_penalty != 0 || frequency_penalty != 0;
  }
  /// A row of sample_tokens' settings; returns where the next one begins.
  float* write(float* row, bool with_penalties) const;
};

}  // namespace trireme::engine
