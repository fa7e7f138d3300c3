// Loads WordPiece from files: vocab.txt, tokenizer.json, a model's directory.
#include <algorithm>

#include "base/error.h"
#include "base/files/file.h"
#include "base/text/json.h"
#include "data/text/wordpiece.h"

namespace trireme::data {
namespace {

using base::fail_unsupported;
using base::Json;
using base::require;

// A hostile vocabulary must not cause an allocation in proportion to a number that it merely states.
constexpr int64_t kMaxVocab = 1 << 23;

void put_token(std::vector<std::string>& vocab, int64_t id, const std::string& token) {
  require(id >= 0 && id < kMaxVocab, "token id is out of range: ", id, " for '", token, "'");
  if (static_cast<size_t>(id) >= vocab.size()) vocab.resize(static_cast<size_t>(id) + 1);
  vocab[static_cast<size_t>(id)] = token;
}

void read_normalizer(const Json& normalizer, BertTextRules& rules) {
  const std::string type = normalizer.is_null() ? "none" : normalizer.at("type").as_string();
  if (type != "BertNormalizer") fail_unsupported("tokenizer.json: normalizer is not BertNormalizer: ", type);
  rules.clean_text = normalizer.get_or("clean_text", true);
  rules.handle_chinese_chars = normalizer.get_or("handle_chinese_chars", true);
  rules.lowercase = normalizer.get_or("lowercase", true);
  rules.strip_accents = normalizer.get_or("strip_accents", rules.lowercase);  // null follows lowercase
}

/// The token of a template item {"SpecialToken": {"id": "[CLS]", "type_id": 0}}, or "$A" for the first text.
std::string template_item(const Json& item) {
  if (const Json* special = item.find("SpecialToken")) return special->at("id").as_string();
  return "$" + item.at("Sequence").at("id").as_string();
}

void read_post_processor(const Json& post, WordPieceOptions& options) {
  const std::string type = post.is_null() ? "none" : post.at("type").as_string();
  if (type == "BertProcessing") {
    options.cls = post.at("cls").at(size_t{0}).as_string();
    options.sep = post.at("sep").at(size_t{0}).as_string();
    return;
  }
  if (type != "TemplateProcessing") fail_unsupported("tokenizer.json: post-processor is not BERT's: ", type);
  std::vector<std::string> single, pair;
  for (const Json& item : post.at("single").as_array()) single.push_back(template_item(item));
  for (const Json& item : post.at("pair").as_array()) pair.push_back(template_item(item));
  const bool known = single.size() == 3 && single[1] == "$A" &&
                     pair == std::vector<std::string>{single[0], "$A", single[2], "$B", single[2]};
  if (!known) fail_unsupported("tokenizer.json: template is not [CLS] $A [SEP] $B [SEP]");
  options.cls = single[0];
  options.sep = single[2];
}

AddedToken read_added_token(const Json& json) {
  AddedToken token;
  token.content = json.at("content").as_string();
  token.id = json.at("id").as_int();
  token.single_word = json.get_or("single_word", false);
  token.lstrip = json.get_or("lstrip", false);
  token.rstrip = json.get_or("rstrip", false);
  if (json.get_or("normalized", false)) {
    fail_unsupported("tokenizer.json: added token is matched after normalization: '", token.content, "'");
  }
  return token;
}

/// A special token of tokenizer_config.json: text, or an object with the text as "content".
std::string token_text(const Json& config, std::string_view key, const std::string& otherwise) {
  const Json* value = config.find(key);
  if (value == nullptr || value->is_null()) return otherwise;
  return value->is_object() ? value->at("content").as_string() : value->as_string();
}

WordPieceOptions read_tokenizer_config(const Json& config) {
  WordPieceOptions options;
  options.text.lowercase = config.get_or("do_lower_case", true);
  options.text.strip_accents = config.get_or("strip_accents", options.text.lowercase);
  options.text.handle_chinese_chars = config.get_or("tokenize_chinese_chars", true);
  options.unk = token_text(config, "unk_token", options.unk);
  options.cls = token_text(config, "cls_token", options.cls);
  options.sep = token_text(config, "sep_token", options.sep);
  options.pad = token_text(config, "pad_token", options.pad);
  options.mask = token_text(config, "mask_token", options.mask);
  // "No limit" is written as 1e30, an integer too long for 64 bits.
  const Json* length = config.find("model_max_length");
  if (length != nullptr && length->is_number() && length->as_double() < 1e9) {
    options.max_length = static_cast<size_t>(std::max(0.0, length->as_double()));
  }
  return options;
}

}  // namespace

WordPiece WordPiece::from_vocab(std::string_view vocab_text, WordPieceOptions options) {
  std::vector<std::string> vocab;
  while (!vocab_text.empty()) {
    const size_t end = std::min(vocab_text.find('\n'), vocab_text.size());
    std::string_view line = vocab_text.substr(0, end);
    if (line.ends_with('\r')) line.remove_suffix(1);
    vocab.emplace_back(line);
    vocab_text.remove_prefix(std::min(end + 1, vocab_text.size()));
    require(vocab.size() <= static_cast<size_t>(kMaxVocab), "vocabulary is too large");
  }
  std::vector<AddedToken> added;
  for (const std::string& token : {options.unk, options.sep, options.pad, options.cls, options.mask}) {
    // If a token is listed twice, the last line counts, as in the trie.
    const auto found = std::find(vocab.rbegin(), vocab.rend(), token);
    if (found != vocab.rend())
      added.push_back({.content = token, .id = std::distance(found, vocab.rend()) - 1});
  }
  return WordPiece(std::move(vocab), std::move(options), std::move(added));
}

WordPiece WordPiece::from_tokenizer_json(std::string_view json_text) {
  const Json json = base::parse_json(json_text, {.size_bytes = size_t{256} << 20});
  const Json& model = json.at("model");
  // Old files omit the type; only WordPiece has this prefix.
  const std::string type =
      model.get_or("type", model.contains("continuing_subword_prefix") ? "WordPiece" : "none");
  if (type != "WordPiece") fail_unsupported("tokenizer.json: model is not WordPiece: ", type);
  const Json null;
  const auto section = [&](std::string_view key) -> const Json& {
    const Json* found = json.find(key);
    return found == nullptr ? null : *found;
  };
  WordPieceOptions options;
  read_normalizer(section("normalizer"), options.text);
  read_post_processor(section("post_processor"), options);
  options.unk = model.get_or("unk_token", "[UNK]");
  options.prefix = model.get_or("continuing_subword_prefix", "##");
  options.max_chars_per_word = model.get_or("max_input_chars_per_word", size_t{100});
  if (section("truncation").is_object())
    options.max_length = section("truncation").get_or("max_length", size_t{0});
  if (section("padding").is_object()) options.pad = section("padding").get_or("pad_token", "[PAD]");

  std::vector<std::string> vocab;
  for (const base::JsonMember& member : model.at("vocab").as_object()) {
    put_token(vocab, member.value.as_int(), member.key);
  }
  std::vector<AddedToken> added;
  if (section("added_tokens").is_array()) {
    for (const Json& item : section("added_tokens").as_array()) {
      added.push_back(read_added_token(item));
      put_token(vocab, added.back().id, added.back().content);
    }
  }
  return WordPiece(std::move(vocab), std::move(options), std::move(added));
}

WordPiece WordPiece::from_directory(const std::string& directory) {
  try {
    const std::string json = directory + "/tokenizer.json";
    if (base::file_exists(json)) return from_tokenizer_json(base::read_file(json));
    const std::string config = directory + "/tokenizer_config.json";
    WordPieceOptions options;
    if (base::file_exists(config)) options = read_tokenizer_config(base::parse_json(base::read_file(config)));
    return from_vocab(base::read_file(directory + "/vocab.txt"), std::move(options));
  } catch (const base::Error& e) {
    throw e.with("tokenizer of '" + directory + "'");
  }
}

}  // namespace trireme::data
