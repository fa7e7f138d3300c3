// Chooses the next token from logits.
#include "engine/decode/sampling.h"

#include <algorithm>

#include "base/error.h"
#include "ops/random/sample_tokens.h"

namespace trireme::engine {

void SamplingOptions::fields(base::OptionList& f) {
  f.add("temperature", &temperature, "divides the logits; 0: always the most likely token").at_least(0);
  f.add("top_k", &top_k, "draw among so many of the most likely tokens; 0: all").at_least(0);
  f.add("top_p", &top_p, "draw among the most likely tokens that have this probability together")
      .at_least(0)
      .at_most(1);
  f.add("min_p", &min_p, "drop tokens less likely than this share of the most likely one")
      .at_least(0)
      .at_most(1);
  f.add("repetition_penalty", &repetition_penalty,
        "divides positive logits of tokens that occurred, multiplies negative ones; 1: off")
      .at_least(1e-3);
  f.add("presence_penalty", &presence_penalty, "taken from the logit of every token generated before");
  f.add("frequency_penalty", &frequency_penalty, "the same, for each time it was generated");
  f.add("seed", &seed, "of the draws; the same seed gives the same text");
}

void SamplingOptions::check() const {
  base::require(temperature >= 0 && top_k >= 0 && top_p >= 0 && top_p <= 1 && min_p >= 0 && min_p <= 1 &&
                    repetition_penalty > 0,
                "sampling with temperature ", temperature, ", top_k ", top_k, ", top_p ", top_p, ", min_p ",
                min_p, ", repetition_penalty ", repetition_penalty);
}

float* SamplingOptions::write(float* row, bool with_penalties) const {
  static_assert(kNumbers == ops::kSampleSettings);
  constexpr int64_t kExact = int64_t{1} << 24;  // larger than any vocabulary, and exact as a float
  row[ops::kTemperature] = static_cast<float>(temperature);
  row[ops::kTopK] = static_cast<float>(std::min(top_k, kExact));
  row[ops::kTopP] = static_cast<float>(top_p);
  row[ops::kMinP] = static_cast<float>(min_p);
  if (!with_penalties) return row + ops::kPlainSettings;
  row[ops::kRepetition] = static_cast<float>(repetition_penalty);
  row[ops::kPresence] = static_cast<float>(presence_penalty);
  row[ops::kFrequency] = static_cast<float>(frequency_penalty);
  return row + ops::kSampleSettings;
}

}  // namespace trireme::engine
