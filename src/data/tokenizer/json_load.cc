// Tokenizers from tokenizer.json, or from vocab.json with merges.txt.
#include <charconv>
#include <filesystem>
#include <limits>

#include "base/error.h"
#include "base/files/file.h"
#include "data/tokenizer/bpe.h"
#include "data/tokenizer/characters.h"
#include "data/tokenizer/json_parts.h"
#include "tensor/gguf/gguf_file.h"

namespace trireme::data {
namespace {

namespace fs = std::filesystem;
using base::fail_unsupported;
using base::Json;
using Merges = std::vector<std::pair<std::string, std::string>>;

Merges merges_of(const Json& list) {
  Merges merges;
  for (const Json& item : list.as_array()) {
    merges.push_back(item.is_string() ? split_merge(item.as_string())
                                      : std::pair{item.at(0).as_string(), item.at(1).as_string()});
  }
  return merges;
}

/// An id that is a key of an object.
int64_t id_of(const std::string& text) {
  int64_t id = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), id);
  base::require(error == std::errc() && end == text.data() + text.size(), "token id '", text, "'");
  return id;
}

int32_t find_token(const std::vector<std::string>& tokens, const std::string& text) {
  for (size_t i = 0; i < tokens.size() && !text.empty(); ++i) {
    if (tokens[i] == text) return static_cast<int32_t>(i);
  }
  return Vocabulary::kNone;
}

std::unique_ptr<PieceModel> read_bpe(const Json& model, const TokenizerParts& parts) {
  if (model.get_or("dropout", 0.0) != 0) fail_unsupported("tokenizer.json: BPE with dropout");
  BpeRules rules{.byte_level = parts.is_byte_level,
                 .byte_fallback = model.get_or("byte_fallback", false),
                 .fuses_unknown = model.get_or("fuse_unk", false),
                 .ignores_merges = model.get_or("ignore_merges", false),
                 .unknown = find_token(parts.tokens, model.get_or("unk_token", "")),
                 .prefix = model.get_or("continuing_subword_prefix", ""),
                 .suffix = model.get_or("end_of_word_suffix", "")};
  return bpe_of(parts.tokens, merges_of(model.at("merges")), std::move(rules));
}

void read_unigram(const Json& model, TokenizerParts& parts) {
  std::vector<double> scores;
  for (const Json& item : model.at("vocab").as_array()) {
    parts.tokens.push_back(item.at(size_t{0}).as_string());
    scores.push_back(item.at(1).as_double());
  }
  const int64_t unknown = model.get_or("unk_id", int64_t{-1});
  base::require(unknown < static_cast<int64_t>(parts.tokens.size()), "unk_id is ", unknown);
  parts.model = unigram_model(parts.tokens, std::move(scores),
                              {.unknown = static_cast<int32_t>(std::max<int64_t>(unknown, -1)),
                               .byte_fallback = model.get_or("byte_fallback", false)});
}

}  // namespace

std::vector<std::string> vocabulary_of(const Json& map) {
  std::vector<std::string> tokens;
  for (const auto& [token, id] : map.as_object()) place_token(tokens, id.as_int(), token);
  return tokens;
}

std::pair<std::string, std::string> split_merge(std::string_view text) {
  const size_t space = text.find(' ');
  base::require(space != std::string_view::npos && space > 0, "merge '", text, "' is not two tokens");
  return {std::string(text.substr(0, space)), std::string(text.substr(space + 1))};
}

SpecialToken special_of(const Json& json, int64_t id) {
  const bool is_special = json.get_or("special", false);
  return {.content = json.at("content").as_string(),
          .id = id,
          .single_word = json.get_or("single_word", false),
          .lstrip = json.get_or("lstrip", false),
          .rstrip = json.get_or("rstrip", false),
          .is_special = is_special,
          .is_normalized = json.get_or("normalized", !is_special)};
}

void read_model(const Json& model, TokenizerParts& parts) {
  // Old files omit the type.
  std::string type = model.get_or("type", model.contains("merges")                      ? "BPE"
                                          : model.contains("continuing_subword_prefix") ? "WordPiece"
                                          : model.contains("unk_id")                    ? "Unigram"
                                                                                        : "?");
  if (type == "Unigram") return read_unigram(model, parts);
  if (type != "BPE" && type != "WordPiece" && type != "WordLevel")
    fail_unsupported("tokenizer.json: a model of the kind ", type,
                     "; known: BPE, Unigram, WordPiece, WordLevel");
  parts.tokens = vocabulary_of(model.at("vocab"));
  if (type == "BPE") {
    parts.model = read_bpe(model, parts);
    return;
  }
  const int32_t unknown =
      find_token(parts.tokens, model.get_or("unk_token", type == "WordPiece" ? "[UNK]" : ""));
  if (type == "WordLevel") {
    parts.model = word_level_model(parts.tokens, unknown);
    return;
  }
  parts.model = word_piece_model(parts.tokens,
                                 {.unknown = unknown,
                                  .prefix = model.get_or("continuing_subword_prefix", "##"),
                                  .most_characters = model.get_or("max_input_chars_per_word", size_t{100})});
}

std::unique_ptr<PieceModel> bpe_of(std::vector<std::string> texts, Merges merges, BpeRules rules) {
  if (rules.byte_level) {
    for (std::string& text : texts) text = from_alphabet(text);
    for (auto& [left, right] : merges) {
      left = from_alphabet(left);
      right = from_alphabet(right);
    }
  }
  Vocabulary vocabulary(texts);
  const std::vector<BpeMerge> known = merges_by_text(vocabulary, merges, rules.prefix);
  return std::make_unique<BpeModel>(std::move(vocabulary), known, std::move(rules));
}

std::unique_ptr<Tokenizer> tokenizer_from_json(std::string_view json_text) {
  const Json json = base::parse_json(json_text, {.size_bytes = size_t{256} << 20});
  TokenizerParts parts;
  read_normalizer(json, parts);
  read_pre_tokenizer(json, parts);
  read_model(json.at("model"), parts);
  read_decoder(json, parts);
  read_post_processor(json, parts);
  if (const Json* added = part_of(json, "added_tokens")) {
    for (const Json& token : added->as_array())
      parts.special.push_back(special_of(token, token.at("id").as_int()));
  }
  return std::make_unique<PieceTokenizer>(std::move(parts));
}

/// GPT-2's rules, or Qwen 2's if tokenizer_config.json says so.
std::unique_ptr<Tokenizer> tokenizer_from_merges(const std::string& directory) {
  const fs::path root(directory);
  TokenizerParts parts;
  parts.tokens = vocabulary_of(base::parse_json(base::read_file((root / "vocab.json").string())));
  Merges merges;
  const std::string text = base::read_file((root / "merges.txt").string());
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    std::string line = text.substr(begin, end - begin);
    if (line.ends_with('\r')) line.pop_back();
    if (!line.empty() && !(begin == 0 && line.starts_with("#version"))) merges.push_back(split_merge(line));
    begin = end + 1;
  }
  WordPattern pattern = WordPattern::gpt2;
  const std::string config = (root / "tokenizer_config.json").string();
  if (base::file_exists(config)) {
    const Json json = base::parse_json(base::read_file(config));
    const std::string kind = json.get_or("tokenizer_class", "GPT2Tokenizer");
    if (kind.starts_with("Qwen2")) {
      pattern = WordPattern::qwen2;
      parts.normalizer.push_back(unicode_form(UnicodeForm::nfc));
    } else if (!kind.starts_with("GPT2")) {
      fail_unsupported("tokenizer_config.json: a ", kind, " without tokenizer.json");
    }
    if (json.get_or("add_prefix_space", false)) parts.pre_tokenizer.push_back(prefix_space());
    if (const Json* added = part_of(json, "added_tokens_decoder")) {
      for (const auto& [id, token] : added->as_object())
        parts.special.push_back(special_of(token, id_of(id)));
    }
  }
  if (parts.special.empty()) {
    const int32_t end = find_token(parts.tokens, "<|endoftext|>");
    if (end != Vocabulary::kNone) parts.special.push_back({.content = "<|endoftext|>", .id = end});
  }
  parts.pre_tokenizer.push_back(split_words(pattern));
  parts.decoder.is_byte_level = true;
  parts.model = bpe_of(parts.tokens, std::move(merges), {});
  return std::make_unique<PieceTokenizer>(std::move(parts));
}

std::unique_ptr<Tokenizer> open_tokenizer(const std::string& path) {
  const fs::path root(path);
  const auto text_of = [](const fs::path& file) { return base::read_file(file.string()); };
  const auto has = [&](const char* name) { return base::file_exists((root / name).string()); };
  std::error_code ignored;
  if (fs::is_regular_file(root, ignored)) {
    if (root.extension() == ".json") return tokenizer_from_json(text_of(root));
    if (root.extension() == ".model") return tokenizer_from_sentence_piece(text_of(root), "");
    if (root.extension() == ".tiktoken") return tokenizer_from_tiktoken(text_of(root), root.stem().string());
    if (root.extension() == ".gguf") return tokenizer_from_gguf(tensor::GgufFile::open(path).metadata());
    fail_unsupported("'", path, "' is no tokenizer: known are .json, .model, .tiktoken and .gguf");
  }
  if (has("tokenizer.json")) return tokenizer_from_json(text_of(root / "tokenizer.json"));
  if (has("vocab.json") && has("merges.txt")) return tokenizer_from_merges(path);
  if (has("tokenizer.model")) {
    const std::string config = has("tokenizer_config.json") ? text_of(root / "tokenizer_config.json") : "";
    return tokenizer_from_sentence_piece(text_of(root / "tokenizer.model"), config);
  }
  if (fs::is_directory(root, ignored)) {
    for (const auto& entry : fs::directory_iterator(root)) {
      if (entry.path().extension() == ".tiktoken")
        return tokenizer_from_tiktoken(text_of(entry.path()), entry.path().stem().string());
    }
  }
  base::fail(base::ErrorCode::not_found,
             "no tokenizer.json, tokenizer.model, .tiktoken, nor vocab.json and "
             "merges.txt, in '",
             path, "'");
}

}  // namespace trireme::data
