// What protocols of language models ask of a model, whatever is behind it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/text/json.h"
#include "data/template/chat_template.h"
#include "data/text/tokenizer.h"
#include "engine/decode/generator.h"

namespace trireme::serve {

/// A prompt to be continued. The model adds the tokens that end its texts to `generate.stop`.
struct TextAsk {
  engine::GenerateRequest generate;
  std::vector<std::string> stop;  ///< texts that end the answer, and are not part of it
  bool ignores_end = false;       ///< goes on behind the tokens that end a text
  std::string tenant;             ///< the word that tells tenants apart
  uint64_t priority = 0;          ///< 0: the default, 1: highest
  uint64_t timeout_us = 0;        ///< it must have begun by then; 0: the server's
  int64_t received_ns = 0;        ///< steady clock
};

/// What a token adds to an answer.
struct TextPiece {
  std::string_view text;       ///< whole characters; empty while one is open or a stop text may have begun
  int64_t token = -1;          ///< -1: none, what was held back comes last
  double log_probability = 0;  ///< natural logarithm, of the model's own distribution
};

/// How an answer ended, and how much there was.
struct TextEnd {
  engine::FinishReason reason = engine::FinishReason::none;  ///< stop or length
  int64_t prompt_tokens = 0;
  int64_t known_tokens = 0;  ///< of these, those that did not run because another text began so
  int64_t answer_tokens = 0;
};

/// Who reads an answer as it comes. Told on the model's thread, one call at a time, while no step runs: what
/// it does must be quick. The last call is on_end() or on_error().
class TextReader {
 public:
  virtual ~TextReader() = default;
  virtual void on_piece(const TextPiece& piece) = 0;
  virtual void on_end(const TextEnd& end) = 0;
  virtual void on_error(const base::Error& error) = 0;
  /// Nobody reads any more.
  virtual bool is_gone() const = 0;
};

/// A conversation as the model's template takes it.
struct Chat {
  base::Json messages;  ///< an array of objects with a role
  base::Json tools;     ///< an array of schemas, or null
  data::ChatOptions options;
};

/// Any thread.
class TextModel {
 public:
  virtual ~TextModel() = default;
  virtual const data::Tokenizer& tokenizer() const = 0;
  /// Tokens of prompt and answer at most.
  virtual int64_t max_length() const = 0;
  /// The prompt that a conversation becomes by the model's template. Throws unsupported where it has none,
  /// invalid_argument for messages that the template refuses.
  virtual std::string chat_prompt(const Chat& chat) const = 0;
  /// Queues the prompt. Throws invalid_argument for one that the model cannot take, exhausted where too many
  /// wait, unavailable while it shuts down; otherwise the reader is told of everything.
  virtual void ask(TextAsk ask, std::shared_ptr<TextReader> reader) = 0;
};

}  // namespace trireme::serve
