// Tokens of an answer and those that might have come in their place, as JSON of the OpenAI API.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "data/text/tokenizer.h"
#include "engine/decode/draw_form.h"

namespace trireme::serve {

/// One token of an answer.
struct AnswerToken {
  int64_t id = 0;
  double log_probability = 0;                       ///< no number: nobody knows, as of a text's first token
  size_t text_offset = 0;                           ///< in characters
  std::vector<engine::TokenChance> likeliest = {};  ///< as many as were asked for
};

/// "name":[...], each item by `append_one`.
template <class Items, class AppendOne>
void append_list(std::string& out, std::string_view name, const Items& items, const AppendOne& append_one) {
  out += '"';
  out += name;
  out += "\":[";
  for (size_t i = 0; i < items.size(); ++i) {
    if (i > 0) out += ',';
    append_one(items[i]);
  }
  out += ']';
}

/// A token's bytes as text; those that are no whole characters by their numbers, as OpenAI's API has them.
std::string shown_token(const data::Tokenizer& tokenizer, int64_t id);

/// {"token", "logprob", "bytes", "top_logprobs": [{"token", "logprob", "bytes"}]}, as chats and responses
/// have it.
void append_chances(std::string& out, const data::Tokenizer& tokenizer, const AnswerToken& token);

/// The members tokens, token_logprobs, top_logprobs and text_offset, as completions have them.
void append_completion_chances(std::string& out, const data::Tokenizer& tokenizer,
                               std::span<const AnswerToken> tokens);

}  // namespace trireme::serve
