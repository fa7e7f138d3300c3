// Loads chat templates from files, and renders them by the conventions of Transformers.
#include "data/template/chat_template.h"

#include <array>
#include <filesystem>

#include "base/error.h"
#include "base/files/file.h"
#include "data/template/interpreter.h"
#include "data/template/text_methods.h"
#include "tensor/gguf/gguf_file.h"

namespace trireme::data {
namespace {

namespace fs = std::filesystem;
using base::Json;
using jinja::Value;

/// Appended to the text of the message to be continued, in order to find its end in the rendered text.
constexpr std::string_view kMark = "CONTINUE_FINAL_MESSAGE_TAG ";
/// Names under which a message's reasoning is passed.
constexpr std::array<const char*, 3> kReasoning = {"reasoning_content", "thinking", "reasoning"};

constexpr uint64_t kFixedSteps = 2'000'000, kStepsPerByte = 1000;
constexpr uint64_t kFixedBytes = uint64_t{64} << 20, kBytesPerByte = 1024;

/// Provides the reasoning under the names that templates use for it.
Json with_reasoning(const Json& message) {
  for (const char* name : kReasoning) {
    const Json* found = message.find(name);
    if (found == nullptr || found->is_null()) continue;
    const Json reasoning = *found;
    Json out = Json::object();
    if (!message.contains("thinking")) out.set("thinking", reasoning);
    for (const auto& [key, value] : message.as_object()) out.set(key, value);
    out.set("reasoning_content", reasoning);
    return out;
  }
  return message;
}

/// Returns the text to be continued, and appends the mark to it in the message.
std::string mark_last(Json& messages) {
  base::require(messages.size() > 0, "no message to continue");
  Json& last = messages.as_array().back();
  Json* content = last.find("content");
  if (content != nullptr && content->is_array()) {
    for (size_t i = content->size(); i-- > 0;) {
      Json* text = content->as_array()[i].find("text");
      if (text == nullptr) continue;
      const std::string before = text->as_string();
      *text = before + std::string(kMark);
      return before;
    }
  }
  base::require(content != nullptr && content->is_string(), "the last message has no text to continue");
  const std::string before = content->as_string();
  *content = before + std::string(kMark);
  return before;
}

std::string cut_at_mark(const std::string& text, const std::string& continued) {
  const std::string_view bare = kMark.substr(0, kMark.size() - 1);
  const size_t at = text.rfind(bare);
  const std::string_view words = jinja::stripped(continued, nullptr, true, true);
  base::require(at != std::string::npos && text.find(words) != std::string::npos,
                "the template leaves out the message that is to be continued, or a part of it");
  const std::string before = text.substr(0, at);
  const bool keeps_space = std::string_view(text).substr(at).starts_with(kMark);
  return keeps_space ? before : std::string(jinja::stripped(before, nullptr, false, true));
}

/// A special token of tokenizer_config.json: text, or an object with the text as "content".
void add_special(Json& special, const Json& config) {
  for (const char* name :
       {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"}) {
    const Json* token = config.find(name);
    if (token == nullptr || token->is_null()) continue;
    const Json* content = token->find("content");
    special.set(name, content != nullptr ? *content : *token);
  }
}

struct Sources {
  std::optional<std::string> usual, with_tools;
};

/// The texts of `chat_template`: one template, or a list of named ones.
Sources sources_of(const Json& config) {
  Sources sources;
  const Json* found = config.find("chat_template");
  if (found == nullptr || found->is_null()) return sources;
  if (found->is_string()) return {.usual = found->as_string()};
  for (const Json& named : found->as_array()) {
    const std::string name = named.get_or("name", "default");
    if (name == "default" && !sources.usual) sources.usual = named.at("template").as_string();
    if (name == "tool_use") sources.with_tools = named.at("template").as_string();
  }
  return sources;
}

ChatTemplate template_of(const Sources& sources, Json special) {
  if (sources.with_tools) return {*sources.usual, *sources.with_tools, std::move(special)};
  return ChatTemplate(*sources.usual, std::move(special));
}

}  // namespace

struct ChatTemplate::Parsed {
  Parsed(std::string_view from, const Json& tokens) : source(jinja::parse_template(from)), text(from) {
    for (const auto& [name, value] : tokens.as_object()) special.set(name, Value(value));
  }
  explicit Parsed(const base::Error& reason) : error(reason) {}

  jinja::Template source;
  jinja::Dict special;
  std::string text;
  std::optional<base::Error> error;  ///< why it cannot be rendered
};

ChatTemplate::~ChatTemplate() = default;
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;

ChatTemplate::ChatTemplate(std::string_view source, Json special)
    : parsed_(std::make_unique<const Parsed>(source, special)) {}

ChatTemplate::ChatTemplate(std::string_view source, std::string_view with_tools, Json special)
    : ChatTemplate(source, special) {
  try {
    with_tools_ = std::make_unique<const Parsed>(with_tools, special);
  } catch (const base::Error& e) {
    with_tools_ = std::make_unique<const Parsed>(e.with("chat template 'tool_use'"));
  }
}

bool ChatTemplate::mentions(std::string_view text) const {
  return (with_tools_ != nullptr ? with_tools_ : parsed_)->text.find(text) != std::string::npos;
}

Json special_tokens_of(const std::string& directory) {
  Json special = Json::object();
  for (const char* name : {"special_tokens_map.json", "tokenizer_config.json"}) {
    const std::string path = (fs::path(directory) / name).string();
    if (!directory.empty() && base::file_exists(path))
      add_special(special, base::parse_json(base::read_file(path)));
  }
  return special;
}

std::string ChatTemplate::end_token() const {
  const Value* token = parsed_->special.find("eos_token");
  return token != nullptr && token->is_text() ? *token->text() : std::string();
}

std::optional<ChatTemplate> ChatTemplate::of_directory(const std::string& directory) {
  const fs::path root(directory);
  if (root.extension() == ".gguf") return of_gguf(tensor::GgufFile::open(directory).metadata());
  const auto text_of = [&](const char* name) { return base::read_file((root / name).string()); };
  const auto has = [&](const char* name) { return base::file_exists((root / name).string()); };
  constexpr const char* kForTools = "additional_chat_templates/tool_use.jinja";
  Sources sources;
  if (has("tokenizer_config.json")) sources = sources_of(base::parse_json(text_of("tokenizer_config.json")));
  if (has("chat_template.json")) sources = sources_of(base::parse_json(text_of("chat_template.json")));
  if (has("chat_template.jinja")) {
    sources = {.usual = text_of("chat_template.jinja")};
    if (has(kForTools)) sources.with_tools = text_of(kForTools);
  }
  if (!sources.usual) return std::nullopt;
  try {
    return template_of(sources, special_tokens_of(directory));
  } catch (const base::Error& e) {
    throw e.with("chat template of '" + directory + "'");
  }
}

std::optional<ChatTemplate> ChatTemplate::of_gguf(const tensor::GgufMetadata& metadata) {
  if (!metadata.has("tokenizer.chat_template")) return std::nullopt;
  Json special = Json::object();
  const std::vector<std::string_view> tokens = metadata.texts("tokenizer.ggml.tokens");
  for (const char* name : {"bos", "eos", "unknown", "padding"}) {
    const int64_t id = metadata.integer(base::concat("tokenizer.ggml.", name, "_token_id"), -1);
    const std::string_view short_name = name == std::string_view("unknown")   ? "unk"
                                        : name == std::string_view("padding") ? "pad"
                                                                              : name;
    if (id >= 0 && id < static_cast<int64_t>(tokens.size()))
      special.set(base::concat(short_name, "_token"), tokens[static_cast<size_t>(id)]);
  }
  constexpr const char* kForTools = "tokenizer.chat_template.tool_use";
  Sources sources{.usual = std::string(metadata.text("tokenizer.chat_template"))};
  if (metadata.has(kForTools)) sources.with_tools = metadata.text(kForTools);
  return template_of(sources, std::move(special));
}

std::string ChatTemplate::render(const Json& given, const Json& tools, const ChatOptions& options) const {
  const Parsed& chosen = with_tools_ != nullptr && tools.size() > 0 ? *with_tools_ : *parsed_;
  if (chosen.error) throw base::Error(*chosen.error);
  Json messages = Json::array();
  for (const Json& message : given.as_array()) {
    base::require(message.is_object(), "a message is ", message.type_name(), ", not an object");
    messages.push_back(with_reasoning(message));
  }
  std::string continued;
  if (options.continue_final_message) {
    base::require(!options.add_generation_prompt,
                  "a message is to be continued and an answer to be begun: only one of the two");
    continued = mark_last(messages);
  }
  const size_t size =
      messages.dump().size() + tools.dump().size() + options.variables.dump().size() + chosen.text.size();
  jinja::Dict globals = chosen.special;
  globals.set("messages", Value(messages));
  globals.set("tools", Value(tools));
  globals.set("documents", Value());
  globals.set("add_generation_prompt", options.add_generation_prompt);
  for (const auto& [name, value] : options.variables.as_object()) globals.set(name, Value(value));
  const jinja::Budget budget(kFixedSteps + kStepsPerByte * size, kFixedBytes + kBytesPerByte * size);
  try {
    const std::string text =
        jinja::Interpreter(chosen.source, std::move(globals), budget, options.now_s).render();
    return options.continue_final_message ? cut_at_mark(text, continued) : text;
  } catch (const base::Error& e) {
    throw e.with("chat template");
  }
}

}  // namespace trireme::data
