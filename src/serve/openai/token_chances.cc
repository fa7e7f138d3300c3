// Writes tokens of an answer, and their likeliest alternatives, as JSON.
#include "serve/openai/token_chances.h"

#include <cmath>
#include <cstdio>
#include <set>

#include "base/text/json.h"
#include "base/utf8.h"

namespace trireme::serve {
namespace {

/// Appends {"token","logprob","bytes", without the end of the object.
void append_token(std::string& out, const data::Tokenizer& tokenizer, const engine::TokenChance& t) {
  const std::string text = tokenizer.token_bytes(t.token);
  out += "{\"token\":";
  base::append_json(out, std::string_view(shown_token(tokenizer, t.token)));
  out += ",\"logprob\":";
  base::append_json(out, t.log_probability);
  out += ',';
  append_list(out, "bytes", text,
              [&](char byte) { base::append_json(out, int64_t{static_cast<unsigned char>(byte)}); });
}

void append_number(std::string& out, double value) {
  if (std::isnan(value)) {
    out += "null";
  } else {
    base::append_json(out, value);
  }
}

}  // namespace

std::string shown_token(const data::Tokenizer& tokenizer, int64_t id) {
  std::string bytes = tokenizer.token_bytes(id);
  if (base::is_utf8(bytes)) return bytes;
  std::string text = "bytes:";
  for (const char byte : bytes) {
    char escaped[8];
    std::snprintf(escaped, sizeof escaped, "\\x%02x",
                  static_cast<unsigned>(static_cast<unsigned char>(byte)));
    text += escaped;
  }
  return text;
}

void append_chances(std::string& out, const data::Tokenizer& tokenizer, const AnswerToken& token) {
  append_token(out, tokenizer, {token.id, token.log_probability});
  out += ',';
  append_list(out, "top_logprobs", token.likeliest, [&](const engine::TokenChance& chance) {
    append_token(out, tokenizer, chance);
    out += '}';
  });
  out += '}';
}

void append_completion_chances(std::string& out, const data::Tokenizer& tokenizer,
                               std::span<const AnswerToken> tokens) {
  append_list(out, "tokens", tokens, [&](const AnswerToken& t) {
    base::append_json(out, std::string_view(shown_token(tokenizer, t.id)));
  });
  out += ',';
  append_list(out, "token_logprobs", tokens,
              [&](const AnswerToken& t) { append_number(out, t.log_probability); });
  out += ',';
  append_list(out, "top_logprobs", tokens, [&](const AnswerToken& t) {
    if (std::isnan(t.log_probability)) {
      out += "null";
      return;
    }
    // Keyed by text: of tokens with the same text, the likeliest counts. The chosen one is always included.
    std::set<std::string> named;
    const auto append_chance = [&](int64_t id, double log_probability) {
      const std::string text = shown_token(tokenizer, id);
      if (!named.insert(text).second) return;
      if (named.size() > 1) out += ',';
      base::append_json(out, std::string_view(text));
      out += ':';
      base::append_json(out, log_probability);
    };
    out += '{';
    for (const engine::TokenChance& chance : t.likeliest) append_chance(chance.token, chance.log_probability);
    append_chance(t.id, t.log_probability);
    out += '}';
  });
  out += ',';
  append_list(out, "text_offset", tokens,
              [&](const AnswerToken& t) { base::append_json(out, static_cast<int64_t>(t.text_offset)); });
}

}  // namespace trireme::serve
