// Options of `trireme tune` for language models.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/text/options.h"

namespace trireme::tune {

/// Goals of texts, what is asked, and what competes.
struct TextTuning {
  base::Duration ttft{0}, tpot{0};
  int64_t prompt_tokens = 256, answer_tokens = 64;
  std::string lengths;
  std::vector<std::string> weights, cache_types{"f32", "bf16"};
  std::vector<int64_t> sequences{64, 16, 32, 128}, chunks{512, 128, 256, 1024};

  bool is_asked() const { return ttft.ns > 0 || tpot.ns > 0; }

  void fields(base::OptionList& f) {
    f.add(
        "ttft", &ttft,
        "a language model: nine of ten answers begin within this time after they were asked for; the highest "
        "rate of requests is looked for that keeps it");
    f.add("tpot", &tpot, "likewise the mean time of each further token; both, or one of them");
    f.add("prompt_tokens", &prompt_tokens, "texts: tokens of a prompt").at_least(1);
    f.add("answer_tokens", &answer_tokens, "texts: tokens of an answer").at_least(1);
    f.add("lengths", &lengths,
          "texts: lengths of both from the requests of this trace, as `trireme load` takes it");
    f.add("weights", &weights,
          "texts: stored forms that compete with the model's own, such as q8_0; may be repeated (answers "
          "change)");
    f.add("cache_types", &cache_types, "texts: kept keys and values that compete, the usual ones first");
    f.add("sequences", &sequences, "texts: counts under way at a time that compete").at_least(1);
    f.add("chunks", &chunks, "texts: tokens of a step that compete").at_least(1);
  }
};

}  // namespace trireme::tune
