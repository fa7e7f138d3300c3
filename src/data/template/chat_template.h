// Chat templates: from a conversation to the text that a language model was trained on.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/text/json.h"

namespace trireme::tensor {
class GgufMetadata;
}

namespace trireme::data {

struct ChatOptions {
  /// The text that begins an answer comes last.
  bool add_generation_prompt = true;
  /// The last message is to be continued: its text ends the result, and nothing behind it.
  bool continue_final_message = false;
  /// What the template may ask beside the messages: enable_thinking, documents, ...
  base::Json variables = base::Json::object();
  int64_t now_s = 0;  ///< seconds since 1970, for templates that write the date
};

/// Texts of special tokens by the names that templates use, as the files of a directory list them.
base::Json special_tokens_of(const std::string& directory);

/// Jinja as Transformers runs it, in time and memory bounded by the sizes of template and conversation.
/// Immutable; any thread.
class ChatTemplate {
 public:
  /// `special`: texts of special tokens by the names that templates use: bos_token, eos_token, ...
  /// Throws invalid_argument for a template that does not parse, unsupported for statements we do not have.
  explicit ChatTemplate(std::string_view source, base::Json special = base::Json::object());
  /// The same with a source of its own for conversations with tools. What is wrong with that one is thrown
  /// where such a conversation is rendered.
  ChatTemplate(std::string_view source, std::string_view with_tools, base::Json special);
  ~ChatTemplate();
  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;

  /// Of a Hugging Face directory or a .gguf file: chat_template.jinja, else chat_template.json, else the
  /// member of tokenizer_config.json. Of several the one named "default", and for conversations with tools
  /// "tool_use". None: nothing.
  static std::optional<ChatTemplate> of_directory(const std::string& directory);

  /// Of a GGUF file: tokenizer.chat_template, and tokenizer.chat_template.tool_use. None: nothing.
  static std::optional<ChatTemplate> of_gguf(const tensor::GgufMetadata& metadata);

  /// `messages`: an array of objects with role and content; `tools`: an array of JSON schemas, or null; if
  /// there are some, the source for them applies.
  /// Equals apply_chat_template(tokenize=False) of Transformers 5. Throws invalid_argument where the template
  /// refuses the conversation, exhausted where it takes too long.
  std::string render(const base::Json& messages, const base::Json& tools = {},
                     const ChatOptions& options = {}) const;

  /// Whether the source for conversations with tools, often the only one, has this text.
  bool mentions(std::string_view text) const;
  /// The text of eos_token; empty if it is not known.
  std::string end_token() const;

 private:
  struct Parsed;
  std::unique_ptr<const Parsed> parsed_, with_tools_;  ///< `with_tools_` is null where there is one source
};

}  // namespace trireme::data
