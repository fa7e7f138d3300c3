// Writes the tokenizer of a Hugging Face directory as metadata of a GGUF file.
#include "model/gguf/gguf_tokenizer.h"

#include <algorithm>

#include "base/error.h"
#include "base/files/file.h"

namespace trireme::model::gguf {
namespace {

enum TokenKind : int32_t { kNormal = 1, kControl = 3, kUserDefined = 4, kUnused = 5 };
constexpr int64_t kMostTokens = 1 << 24;

/// llama.cpp's name for the pattern that splits text into words, recognised by characteristic parts of it.
std::string_view pattern_name(const base::Json& tokenizer) {
  const base::Json* cut = tokenizer.find("pre_tokenizer");
  const std::string text = cut == nullptr ? "" : cut->dump();
  const auto has = [&](std::string_view part) { return text.find(part) != std::string::npos; };
  if (has("\\\\p{N}{1,3}")) return "llama-bpe";
  if (has("\\\\p{N}|") && has("(?i:'s|'t|'re|'ve|'m|'ll|'d)")) return "qwen2";
  if (has("\"Digits\"")) return "smollm";
  return "gpt-2";
}

bool is_byte_level(const base::Json& tokenizer) {
  const base::Json& model = tokenizer.at("model");
  const base::Json* cut = tokenizer.find("pre_tokenizer");
  return model.get_or("type", "BPE") == std::string("BPE") && !model.get_or("byte_fallback", false) &&
         cut != nullptr && cut->dump().find("ByteLevel") != std::string::npos;
}

void write_vocabulary(const base::Json& tokenizer, tensor::GgufWriter& to) {
  const base::JsonObject& vocabulary = tokenizer.at("model").at("vocab").as_object();
  int64_t count = 0;
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

void write_numbers(const base::Json& config, tensor::GgufWriter& to) {
  for (const char* name : {"bos", "eos", "pad", "unk"}) {
    const base::Json* id = config.find(base::concat(name, "_token_id"));
    if (id != nullptr && id->is_array() && id->size() > 0) id = &id->at(size_t{0});
    const std::string key = base::concat("tokenizer.ggml.",
                                         name == std::string("pad")   ? "padding"
                                         : name == std::string("unk") ? "unknown"
                                                                      : name,
                                         "_token_id");
    if (id != nullptr && id->is_integer() && id->as_int() >= 0)
      to.set_integer(key, static_cast<uint32_t>(id->as_int()));
  }
}

}  // namespace

void write_tokenizer(const std::string& directory, const base::Json& config, tensor::GgufWriter& to) {
  write_numbers(config, to);
  const std::string path = directory + "/tokenizer_config.json";
  if (base::file_exists(path)) {
    const base::Json options = base::parse_json(base::read_file(path));
    const base::Json* chat = options.find("chat_template");
    if (chat != nullptr && chat->is_string()) to.set_text("tokenizer.chat_template", chat->as_string());
    const base::Json* bos = options.find("add_bos_token");
    if (bos != nullptr && bos->is_bool()) to.set_flag("tokenizer.ggml.add_bos_token", bos->as_bool());
  }
  const std::string main = directory + "/tokenizer.json";
  if (!base::file_exists(main)) return;
  const base::Json tokenizer = base::parse_json(base::read_file(main));
  if (!is_byte_level(tokenizer))
    base::fail_unsupported("writing a tokenizer that is no BPE over bytes as GGUF");
  to.set_text("tokenizer.ggml.model", "gpt2");
  to.set_text("tokenizer.ggml.pre", pattern_name(tokenizer));
  write_vocabulary(tokenizer, to);
  write_merges(tokenizer, to);
}

}  // namespace trireme::model::gguf
