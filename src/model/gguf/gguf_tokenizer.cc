// Writes the tokenizer of a Hugging Face directory as metadata of a GGUF file.
#include "model/gguf/gguf_tokenizer.h"

#include <algorithm>
#include <filesystem>
#include <optional>

#include "base/error.h"
#include "base/files/file.h"
#include "tensor/gguf/gguf_words.h"

namespace trireme::model::gguf {
namespace {

enum TokenKind : int32_t { kNormal = 1, kControl = 3, kUserDefined = 4, kUnused = 5 };
constexpr int64_t kMostTokens = 1 << 24;

/// What a directory says about its tokenizer; null where it has no such file.
struct TokenizerFiles {
  base::Json tokenizer;  ///< tokenizer.json
  base::Json options;    ///< tokenizer_config.json
  base::Json config;     ///< config.json
};

/// Appends the expressions by which a pre-tokenizer splits texts into words.
void append_patterns(const base::Json& step, std::vector<std::string>& patterns) {
  const std::string type = step.get_or("type", "");
  const std::string behavior = step.get_or("behavior", "Isolated");
  const bool is_inverted = step.get_or("invert", false);
  const bool keeps_words = is_inverted ? behavior == "Removed" : behavior == "Isolated";
  const base::Json* pattern = step.find("pattern");
  if (type == "Sequence") {
    for (const base::Json& inner : step.at("pretokenizers").as_array()) append_patterns(inner, patterns);
  } else if (type == "ByteLevel" && !step.get_or("add_prefix_space", false)) {
    if (step.get_or("use_regex", true)) patterns.emplace_back(tensor::kGpt2Words);
  } else if (type == "Digits") {
    patterns.emplace_back(step.get_or("individual_digits", false) ? R"(\p{N})" : R"(\p{N}+)");
  } else if (type == "Punctuation" && behavior == "Contiguous") {
    patterns.emplace_back(tensor::kPunctuationRuns);
  } else if (type == "Split" && keeps_words && pattern != nullptr && pattern->contains("Regex")) {
    patterns.push_back(pattern->at("Regex").as_string());
  } else {
    base::fail_unsupported("writing a tokenizer with the pre-tokenizer ", step.dump().substr(0, 200),
                           " as GGUF");
  }
}

/// GGUF's name for the words into which a tokenizer splits texts.
std::string_view words_name(const base::Json& tokenizer) {
  std::vector<std::string> patterns;
  append_patterns(tokenizer.at("pre_tokenizer"), patterns);
  const std::string_view name =
      tensor::gguf_words_name(patterns, tokenizer.at("model").get_or("ignore_merges", false));
  if (name.empty())
    base::fail_unsupported("writing a tokenizer as GGUF whose words have no name there: ",
                           tokenizer.at("pre_tokenizer").dump().substr(0, 400));
  return name;
}

bool is_byte_level(const base::Json& tokenizer) {
  const base::Json& model = tokenizer.at("model");
  const base::Json* cut = tokenizer.find("pre_tokenizer");
  return model.get_or("type", "BPE") == std::string("BPE") && !model.get_or("byte_fallback", false) &&
         cut != nullptr && cut->dump().find("ByteLevel") != std::string::npos;
}

/// A token for each of the embedding's `rows`: numbers that the tokenizer does not have are unused.
void write_vocabulary(const base::Json& tokenizer, int64_t rows, tensor::GgufWriter& to) {
  const base::JsonObject& vocabulary = tokenizer.at("model").at("vocab").as_object();
  int64_t count = rows;
  const auto take = [&](int64_t id) {
    base::require(id >= 0 && id < kMostTokens, "tokenizer.json: a token's number is ", id);
    count = std::max(count, id + 1);
  };
  for (const base::JsonMember& m : vocabulary) take(m.value.as_int());
  const base::Json* added = tokenizer.find("added_tokens");
  if (added != nullptr) {
    for (const base::Json& t : added->as_array()) take(t.at("id").as_int());
  }
  std::vector<std::string> tokens;
  std::vector<int32_t> kinds(static_cast<size_t>(count), kUnused);
  for (int64_t i = 0; i < count; ++i) tokens.push_back(base::concat("[PAD", i, "]"));
  const auto put = [&](int64_t id, const std::string& text, TokenKind kind) {
    tokens[static_cast<size_t>(id)] = text;
    kinds[static_cast<size_t>(id)] = kind;
  };
  for (const base::JsonMember& m : vocabulary) put(m.value.as_int(), m.key, kNormal);
  if (added != nullptr) {
    for (const base::Json& t : added->as_array())
      put(t.at("id").as_int(), t.at("content").as_string(),
          t.get_or("special", false) ? kControl : kUserDefined);
  }
  to.set_texts("tokenizer.ggml.tokens", tokens);
  to.set_integers("tokenizer.ggml.token_type", kinds);
}

void write_merges(const base::Json& tokenizer, tensor::GgufWriter& to) {
  std::vector<std::string> merges;
  for (const base::Json& m : tokenizer.at("model").at("merges").as_array()) {
    merges.push_back(m.is_string()
                         ? m.as_string()
                         : base::concat(m.at(size_t{0}).as_string(), " ", m.at(size_t{1}).as_string()));
  }
  to.set_texts("tokenizer.ggml.merges", merges);
}

/// The first and the last special token of the template around every text, as far as there are such.
struct Surroundings {
  std::optional<int64_t> first, last;
};

Surroundings surroundings_of(const base::Json& processor) {
  const std::string type = processor.get_or("type", "");
  Surroundings found;
  if (type == "Sequence") {
    for (const base::Json& inner : processor.at("processors").as_array()) {
      const Surroundings own = surroundings_of(inner);
      if (own.first) found.first = own.first;
      if (own.last) found.last = own.last;
    }
  }
  if (type != "TemplateProcessing" || processor.at("single").size() == 0) return found;
  const base::JsonArray& items = processor.at("single").as_array();
  const auto id_of = [&](const base::Json& item) -> std::optional<int64_t> {
    const base::Json* token = item.find("SpecialToken");
    if (token == nullptr) return std::nullopt;
    const base::Json& named = processor.at("special_tokens").at(token->at("id").as_string());
    return named.at("ids").at(size_t{0}).as_int();
  };
  return {id_of(items.front()), id_of(items.back())};
}

std::optional<int64_t> number_of(const base::Json& tokenizer, const std::string& text) {
  if (const base::Json* added = tokenizer.find("added_tokens")) {
    for (const base::Json& token : added->as_array()) {
      if (token.at("content").as_string() == text) return token.at("id").as_int();
    }
  }
  const base::Json* model = tokenizer.find("model");
  const base::Json* vocabulary = model == nullptr ? nullptr : model->find("vocab");
  const base::Json* id = vocabulary == nullptr ? nullptr : vocabulary->find(text);
  return id == nullptr ? std::nullopt : std::optional(id->as_int());
}

/// The number of a special token: of the text in tokenizer_config.json, whose tokens are those of
/// conversations, else as config.json has it, of several the first.
std::optional<int64_t> special_number(const TokenizerFiles& files, const std::string& name) {
  const base::Json* token = files.options.find(name + "_token");
  if (token != nullptr && token->contains("content")) token = token->find("content");
  if (token != nullptr && token->is_string()) {
    if (const auto id = number_of(files.tokenizer, token->as_string())) return id;
  }
  const base::Json* id = files.config.find(name + "_token_id");
  if (id != nullptr && id->is_array() && id->size() > 0) id = &id->at(size_t{0});
  const bool is_number = id != nullptr && id->is_integer() && id->as_int() >= 0;
  return is_number ? std::optional(id->as_int()) : std::nullopt;
}

void write_numbers(const TokenizerFiles& files, tensor::GgufWriter& to) {
  Surroundings around;
  if (const base::Json* processor = files.tokenizer.find("post_processor"))
    around = surroundings_of(*processor);
  for (const std::string name : {"bos", "eos", "pad", "unk"}) {
    const bool is_first = name == "bos", is_last = name == "eos";
    const auto surrounding = is_first ? around.first : is_last ? around.last : std::nullopt;
    auto id = special_number(files, name);
    if (!id) id = surrounding;
    if (!id || *id < 0) continue;
    const std::string theirs = name == "pad" ? "padding" : name == "unk" ? "unknown" : name;
    to.set_integer("tokenizer.ggml." + theirs + "_token_id", static_cast<uint32_t>(*id));
    if (!is_first && !is_last) continue;
    // Readers assume one or the other where a file says nothing.
    const base::Json* flag = files.options.find("add_" + name + "_token");
    const bool is_stated = flag != nullptr && flag->is_bool();
    if (is_stated || files.tokenizer.is_object())
      to.set_flag("tokenizer.ggml.add_" + name + "_token", is_stated ? flag->as_bool() : surrounding == id);
  }
}

/// Chat templates by the rules of data/template: chat_template.jinja, else chat_template.json, else
/// tokenizer_config.json, which may hold several by name.
void write_templates(const std::string& directory, const base::Json& options, tensor::GgufWriter& to) {
  const std::string key = "tokenizer.chat_template";
  std::vector<std::string> names;
  const auto put = [&](const std::string& name, const std::string& text) {
    to.set_text(name == "default" ? key : key + "." + name, text);
    if (name != "default") names.push_back(name);
  };
  const std::string plain = directory + "/chat_template.jinja", json = directory + "/chat_template.json";
  const std::string for_tools = directory + "/additional_chat_templates/tool_use.jinja";
  const base::Json alone = base::file_exists(json) ? base::parse_json(base::read_file(json)) : base::Json();
  const base::Json* chat = (alone.is_null() ? options : alone).find("chat_template");
  if (base::file_exists(plain)) {
    put("default", base::read_file(plain));
    if (base::file_exists(for_tools)) put("tool_use", base::read_file(for_tools));
  } else if (chat != nullptr && chat->is_string()) {
    put("default", chat->as_string());
  } else if (chat != nullptr && chat->is_array()) {
    for (const base::Json& one : chat->as_array())
      put(one.get_or("name", "default"), one.at("template").as_string());
  }
  if (!names.empty()) to.set_texts("tokenizer.chat_templates", names);
}

/// Without tokenizer.json the file gets no tokenizer, which is right only where the directory has none.
void refuse_other_tokenizers(const std::string& directory) {
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    const std::string name = entry.path().filename().string();
    if (name == "tokenizer.model" || name == "vocab.json" || name.ends_with(".tiktoken"))
      base::fail_unsupported("writing the tokenizer ", name, " without a tokenizer.json as GGUF");
  }
}

}  // namespace

void write_tokenizer(const std::string& directory, const base::Json& config, int64_t rows,
                     tensor::GgufWriter& to) {
  const auto json_of = [&](const char* name) {
    const std::string path = directory + "/" + name;
    return base::file_exists(path) ? base::parse_json(base::read_file(path)) : base::Json();
  };
  const TokenizerFiles files{json_of("tokenizer.json"), json_of("tokenizer_config.json"), config};
  write_numbers(files, to);
  write_templates(directory, files.options, to);
  if (files.tokenizer.is_null()) return refuse_other_tokenizers(directory);
  if (!is_byte_level(files.tokenizer))
    base::fail_unsupported("writing a tokenizer that is no BPE over bytes as GGUF");
  to.set_text("tokenizer.ggml.model", "gpt2");
  to.set_text("tokenizer.ggml.pre", words_name(files.tokenizer));
  write_vocabulary(files.tokenizer, rows, to);
  write_merges(files.tokenizer, to);
}

}  // namespace trireme::model::gguf
