// Chooses the next token from logits: greedy or drawn, with penalties and cuts, the same for the same seed.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/options.h"

namespace trireme::engine {

/// The steps happen in this order; the defaults leave each out but the temperature, which 0 turns into the
/// most likely token.
struct SamplingOptions {
  double repetition_penalty = 1;  ///< logits of tokens that occurred: divided by it, or multiplied below 0
  double presence_penalty = 0;    ///< taken from logits of tokens that were generated
  double frequency_penalty = 0;   ///< the same for every time
  double temperature = 1;
  int64_t top_k = 0;
  double top_p = 1;
  double min_p = 0;
  int64_t seed = 0;

  void fields(base::OptionList& f);
};

/// The state of one sequence. All its memory is taken in the constructor.
class Sampler {
 public:
  /// Throws invalid_argument for options out of range.
  Sampler(const SamplingOptions& options, int64_t vocabulary);

  /// Tokens of the prompt, which the repetition penalty counts too.
  void see_prompt(std::span<const int64_t> tokens);
  /// The next token: drawn by Philox(seed; number of the token), so it depends on nothing but the logits and
  /// how many came before. Ties go to the lower id. Logits of NaN are never chosen.
  int64_t next(std::span<const float> logits);
  /// The natural logarithm of the probability of the last token among all, before penalties and cuts.
  double last_log_probability() const { return log_probability_; }

 private:
  struct Candidate {
    float logit;
    int32_t id;
  };
  bool has_penalties() const;
  void penalize();
  size_t cut(size_t count);
  int64_t choose(std::span<const float> logits);

  SamplingOptions options_;
  std::vector<float> scores_;
  std::vector<Candidate> candidates_;
  std::vector<int32_t> generated_;  // how often, by id
  std::vector<bool> in_prompt_;
  int64_t count_ = 0;
  double log_probability_ = 0;
};

}  // namespace trireme::engine
