// Requests of the OpenAI API for texts: their members, defaults and ranges.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/text/json.h"
#include "serve/models/text_model.h"
#include "serve/openai/wanted_form.h"

namespace trireme::serve {

/// A prompt as text or as tokens.
using Prompt = std::variant<std::string, std::vector<int64_t>>;

/// What /v1/completions and /v1/chat/completions have in common.
struct CompletionRequest {
  std::string model;
  std::vector<Prompt> prompts;  ///< of a chat none: its messages become one
  int64_t choices = 1;          ///< `n`, answers to each prompt
  int64_t best_of = 1;          ///< so many are made, and the `choices` likeliest given
  bool is_chat = false;
  bool echoes = false;        ///< the prompt stands before the answer
  bool drops_answer = false;  ///< the prompt alone is wanted: of an answer of one token nothing is given
  bool streams = false, wants_usage = false, wants_usage_always = false;
  bool wants_log_probabilities = false;  ///< of the tokens chosen; of how many others says `ask`
  bool has_most_tokens = false;          ///< else an answer may be as long as the model allows, of a chat
  TextAsk ask;                           ///< but for the prompt; seeds are its own and the next numbers
  Chat chat;                             ///< of a chat, but for the time of day
  bool finds_calls = false;              ///< tools may be called: calls are told apart from the answer's text
  bool calls_once = false;               ///< of several calls only the first counts
  WantedForm form;                       ///< of the answers, beside calls of tools
  bool must_call = false;                ///< the answer is calls and nothing else
  std::string called;                    ///< the only tool that may be called; empty: any

  /// What compile() is given for the model that answers; of no source: nothing.
  WantedForm whole_form(ToolForm how) const;
};

/// Parse a body. Throw MemberError or invalid_argument for what is missing, of another type or out of range,
/// unsupported for what is not served. `seed`: where the request names none.
CompletionRequest completion_request(std::string_view body, int64_t seed);
CompletionRequest chat_request(std::string_view body, int64_t seed);
CompletionRequest chat_request(const base::Json& body, int64_t seed);

}  // namespace trireme::serve
