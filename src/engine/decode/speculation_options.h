// The options of speculative decoding which commands share.
#pragma once

#include <string>

#include "base/error.h"
#include "base/text/options.h"

namespace trireme::engine {

enum class Speculation : uint8_t { off, lookup, draft };

/// Answers are the same for all of them: what differs is how soon they come.
struct SpeculationOptions {
  Speculation speculate = Speculation::off;
  std::string draft;
  int64_t draft_tokens = 8, lookup_tokens = 2;
  base::ByteSize draft_cache_bytes;

  void fields(base::OptionList& f) {
    f.add_choice("speculate", &speculate, {"off", "lookup", "draft"},
                 "a step checks several guessed tokens of a text at once where that pays: guessed from what "
                 "followed the same tokens before, or by a smaller model; answers stay the same");
    f.add("draft", &draft, "with --speculate draft: the smaller model, with the same tokens");
    f.add("draft_tokens", &draft_tokens, "tokens of a text that are guessed for one step, at most")
        .at_least(1)
        .at_most(64);
    f.add("lookup_tokens", &lookup_tokens, "with --speculate lookup: so many tokens at least occurred before")
        .at_least(1)
        .at_most(64);
    f.add("draft_cache_bytes", &draft_cache_bytes,
          "memory for keys and values of the smaller model; 0: up to an eighth of the device's");
  }

  /// Throws invalid_argument for options that contradict one another.
  void check() const {
    if (speculate == Speculation::draft && draft.empty())
      base::fail_invalid("--speculate draft guesses by a smaller model: give --draft");
    if (speculate != Speculation::draft && !draft.empty())
      base::fail_invalid("--draft is the smaller model of --speculate draft, which is not given");
  }
};

}  // namespace trireme::engine
