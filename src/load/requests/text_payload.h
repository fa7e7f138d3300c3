// Requests for language models over the OpenAI API: prompts of stated or recorded lengths that share what
// they are told to share.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "load/load_options.h"
#include "load/requests/payload.h"
#include "load/requests/trace.h"

namespace trireme::load {

/// How long a prompt and its answer are, and what of the prompt others have too.
struct TextLengths {
  int64_t prompt = 0, answer = 0;      ///< tokens
  std::vector<int64_t> shared_blocks;  ///< names of the prompt's first blocks of kBlock tokens; others differ
};

/// Tokens of a block that Mooncake's traces name by a hash.
inline constexpr int64_t kSharedBlock = 512;

/// The requests of an arrival list, once where it is that of --trace, again and again where it is that of
/// --lengths; without one those of --prompt-tokens, --answer-tokens and --shared-tokens. Other lists than a
/// trace's are long, however few requests are counted: warm-ups and further runs send prompts too.
std::vector<TextLengths> text_lengths(const LoadOptions& options, const std::vector<Arrival>& arrivals);

/// A prompt of tokens from `vocabulary`: equal blocks have equal tokens, everything else is drawn by seed and
/// number. What is longer than `most` is cut at its end.
std::vector<int64_t> draw_prompt(const TextLengths& lengths, const std::vector<int64_t>& vocabulary,
                                 uint64_t seed, uint64_t number);

/// Fills the payload with POST /v1/completions of --model, one for each of the lengths, fewer where prompts
/// are so long that they would take much memory, and with some of other prompts for a warm-up. Asks the
/// server's /tokenize for tokens that the model has. Throws exhausted where a trace, or as many requests as
/// are counted, take more than a gibibyte.
void add_text_requests(const LoadOptions& options, Payload& payload);

}  // namespace trireme::load
