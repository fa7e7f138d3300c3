// Text to a language model's tokens and back, whatever the kind of its tokenizer.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::data {

/// Tokens of one answer as they come -> text as soon as it is certain: never half of a character.
class TextStream {
 public:
  virtual ~TextStream() = default;
  /// The text that this token completes; empty while a character is still open. Special tokens are left out.
  virtual std::string push(int64_t id) = 0;
  /// What is left; bytes that never became a character are U+FFFD.
  virtual std::string finish() = 0;
};

/// Immutable; any thread.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  /// Tokens of a prompt; `special`: with those that the tokenizer puts before and behind every text. Special
  /// tokens that are spelled in the text count as such.
  virtual std::vector<int64_t> encode(std::string_view text, bool special = true) const = 0;
  virtual std::unique_ptr<TextStream> stream() const = 0;
  virtual std::string decode(const std::vector<int64_t>& ids) const;
  /// The id of a token by its spelling, for example "</s>".
  virtual std::optional<int64_t> find(std::string_view token) const = 0;
  virtual int64_t vocabulary_size() const = 0;
  /// The bytes that a token adds to a text that has begun; empty for special tokens and ids without a token.
  virtual std::string token_bytes(int64_t id) const = 0;
  /// True for tokens that are left out of decoded text.
  virtual bool is_special(int64_t id) const = 0;
};

/// The tokenizer of a Hugging Face directory: tokenizer.json, else vocab.json with merges.txt, a
/// SentencePiece tokenizer.model, or one .tiktoken file; or one of these files itself. Throws not_found if
/// there is none, unsupported for what is not done here, by name.
std::unique_ptr<Tokenizer> open_tokenizer(const std::string& path);

/// Characters in ascending order are tokens 0, 1, 2, ...: those of `text`, as the data format `characters`
/// counts them. A character that is not among them is an error.
std::unique_ptr<Tokenizer> character_tokenizer(std::string_view text);

/// Throws invalid_argument where a number stands for one token in the first and for another in the second, as
/// far as both have one.
void require_same_tokens(const Tokenizer& first, const Tokenizer& second);

}  // namespace trireme::data
