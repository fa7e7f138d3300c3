// Tokenizers from the files of a model's directory: tokenizer.json, or vocab.json with merges.txt.
#include <algorithm>
#include <charconv>
#include <filesystem>

#include "base/error.h"
#include "base/files/file.h"
#include "base/text/json.h"
#include "data/text/bpe.h"

namespace trireme::data {
namespace {

namespace fs = std::filesystem;
using base::Json;
using Merges = std::vector<std::pair<std::string, std::string>>;

constexpr std::string_view kMark = "\xE2\x96\x81";  // U+2581, SentencePiece's space

/// A part of tokenizer.json; null where it is null or absent.
const Json* part_of(const Json& json, std::string_view key) {
  const Json* part = json.find(key);
  return part == nullptr || part->is_null() ? nullptr : part;
}

std::string type_of(const Json& json) { return json.get_or("type", ""); }

/// The parts of a Sequence under `list`, or the part itself.
std::vector<const Json*> parts_of(const Json* part, std::string_view list) {
  std::vector<const Json*> parts;
  if (part == nullptr) return parts;
  if (type_of(*part) != "Sequence") return {part};
  for (const Json& inner : part->at(list).as_array()) {
    for (const Json* deeper : parts_of(&inner, list)) parts.push_back(deeper);
  }
  return parts;
}

std::string literal(const Json& pattern) {
  const Json* text = pattern.find("String");
  return text == nullptr ? "" : text->as_string();
}

std::vector<std::string> vocabulary(const Json& map) {
  std::vector<std::string> tokens;
  for (const auto& [token, id] : map.as_object()) {
    const int64_t at = id.as_int();
    base::require(at >= 0 && at < kMostTokens, "token '", token, "' has the id ", at);
    if (static_cast<size_t>(at) >= tokens.size()) tokens.resize(static_cast<size_t>(at) + 1);
    tokens[static_cast<size_t>(at)] = token;
  }
  return tokens;
}

/// An id that is a key of an object.
int64_t id_of(const std::string& text) {
  int64_t id = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), id);
  base::require(error == std::errc() && end == text.data() + text.size(), "token id '", text, "'");
  return id;
}

/// "a b" in one string, as older files have it.
std::pair<std::string, std::string> split_merge(const std::string& text) {
  const size_t space = text.find(' ');
  base::require(space != std::string::npos && space > 0, "merge '", text, "' is not two tokens");
  return {text.substr(0, space), text.substr(space + 1)};
}

Merges merges_of(const Json& list) {
  Merges merges;
  for (const Json& item : list.as_array()) {
    merges.push_back(item.is_string() ? split_merge(item.as_string())
                                      : std::pair{item.at(0).as_string(), item.at(1).as_string()});
  }
  return merges;
}

SpecialToken special_of(const Json& json, int64_t id) {
  return {.content = json.at("content").as_string(),
          .id = id,
          .single_word = json.get_or("single_word", false),
          .lstrip = json.get_or("lstrip", false),
          .rstrip = json.get_or("rstrip", false),
          .is_special = json.get_or("special", false)};
}

void read_normalizer(const Json& json, BpeOptions& o) {
  for (const Json* part : parts_of(part_of(json, "normalizer"), "normalizers")) {
    const std::string type = type_of(*part);
    if (type == "NFC") {
      o.normalize_nfc = true;
    } else if (type == "Prepend") {
      o.prefix = BpeOptions::Prefix::always;
      o.space = part->at("prepend").as_string();
    } else if (type == "Replace" && literal(part->at("pattern")) == " ") {
      o.space = part->at("content").as_string();
    } else {
      base::fail_unsupported("tokenizer.json: the normalizer ", type);
    }
  }
}

void read_metaspace(const Json& part, BpeOptions& o) {
  o.space = part.get_or("replacement", std::string(kMark));
  const std::string scheme =
      part.get_or("prepend_scheme", part.get_or("add_prefix_space", true) ? "always" : "never");
  o.prefix = scheme == "always"  ? BpeOptions::Prefix::always
             : scheme == "first" ? BpeOptions::Prefix::first
                                 : BpeOptions::Prefix::never;
  o.skips_marked = true;
  o.splits_at_space = part.get_or("split", true);
}

void read_pre_tokenizer(const Json& json, BpeOptions& o) {
  o.byte_level = false;
  o.pattern = WordPattern::none;
  for (const Json* part : parts_of(part_of(json, "pre_tokenizer"), "pretokenizers")) {
    const std::string type = type_of(*part);
    if (type == "ByteLevel") {
      o.byte_level = true;
      o.add_prefix_space = part->get_or("add_prefix_space", false);
      if (part->get_or("use_regex", true)) o.pattern = WordPattern::gpt2;
    } else if (type == "Split") {
      const Json* regex = part->at("pattern").find("Regex");
      const std::string text = regex == nullptr ? "" : regex->as_string();
      o.pattern = pattern_of(text);
      if (o.pattern == WordPattern::none || part->get_or("invert", false) ||
          part->get_or("behavior", "Isolated") != "Isolated")
        base::fail_unsupported("tokenizer.json: words by the pattern ", part->at("pattern").dump());
    } else if (type == "Metaspace") {
      read_metaspace(*part, o);
    } else {
      base::fail_unsupported("tokenizer.json: the pre-tokenizer ", type);
    }
  }
  if (!o.byte_level && o.pattern != WordPattern::none)
    base::fail_unsupported("tokenizer.json: words by a pattern without ByteLevel");
  if (!o.byte_level && o.space.empty()) o.space = " ";
}

void read_decoder(const Json& json, BpeOptions& o) {
  for (const Json* part : parts_of(part_of(json, "decoder"), "decoders")) {
    const std::string type = type_of(*part);
    if (type == "Metaspace") {
      o.drops_first_spaces = part->get_or("prepend_scheme", "always") != "never";
    } else if (type == "Strip") {
      o.strips_start = static_cast<int>(part->get_or("start", int64_t{0}));
    } else if (type != "ByteLevel" && type != "Replace" && type != "ByteFallback" && type != "Fuse") {
      base::fail_unsupported("tokenizer.json: the decoder ", type);
    }
  }
}

void read_template(const Json& part, BpeOptions& o) {
  bool is_before = true;
  for (const Json& item : part.at("single").as_array()) {
    if (item.contains("Sequence")) {
      is_before = false;
      continue;
    }
    const std::string name = item.at("SpecialToken").at("id").as_string();
    for (const Json& id : part.at("special_tokens").at(name).at("ids").as_array())
      (is_before ? o.before : o.behind).push_back(id.as_int());
  }
}

void read_post_processor(const Json& json, BpeOptions& o) {
  for (const Json* part : parts_of(part_of(json, "post_processor"), "processors")) {
    const std::string type = type_of(*part);
    if (type == "TemplateProcessing") {
      read_template(*part, o);
    } else if (type != "ByteLevel") {
      base::fail_unsupported("tokenizer.json: the post-processor ", type);
    }
  }
}

/// vocab.json and merges.txt: GPT-2's rules, or Qwen 2's if tokenizer_config.json says so.
std::unique_ptr<Tokenizer> from_merges(const fs::path& root) {
  const std::vector<std::string> tokens =
      vocabulary(base::parse_json(base::read_file((root / "vocab.json").string())));
  Merges merges;
  const std::string text = base::read_file((root / "merges.txt").string());
  for (size_t begin = 0; begin < text.size();) {
    size_t end = text.find('\n', begin);
    if (end == std::string::npos) end = text.size();
    std::string line = text.substr(begin, end - begin);
    if (line.ends_with('\r')) line.pop_back();
    if (!line.empty() && !(begin == 0 && line.starts_with("#version"))) merges.push_back(split_merge(line));
    begin = end + 1;
  }
  BpeOptions o;
  std::vector<SpecialToken> special;
  const fs::path config = root / "tokenizer_config.json";
  if (base::file_exists(config.string())) {
    const Json json = base::parse_json(base::read_file(config.string()));
    const std::string kind = json.get_or("tokenizer_class", "GPT2Tokenizer");
    if (kind.starts_with("Qwen2")) {
      o.pattern = WordPattern::qwen2;
      o.normalize_nfc = true;
    } else if (!kind.starts_with("GPT2")) {
      base::fail_unsupported("tokenizer_config.json: a ", kind, " without tokenizer.json");
    }
    o.add_prefix_space = json.get_or("add_prefix_space", false);
    if (const Json* added = part_of(json, "added_tokens_decoder")) {
      for (const auto& [id, token] : added->as_object()) special.push_back(special_of(token, id_of(id)));
    }
  }
  if (special.empty()) {
    for (size_t i = 0; i < tokens.size(); ++i) {
      if (tokens[i] == "<|endoftext|>")
        special.push_back({.content = tokens[i], .id = static_cast<int64_t>(i)});
    }
  }
  return std::make_unique<Bpe>(tokens, merges, std::move(o), std::move(special));
}

}  // namespace

std::unique_ptr<Bpe> Bpe::from_tokenizer_json(std::string_view json_text) {
  const Json json = base::parse_json(json_text);
  const Json& model = json.at("model");
  // Old files leave the type out.
  const std::string type = model.get_or("type", model.contains("merges") ? "BPE" : "?");
  if (type != "BPE") base::fail_unsupported("tokenizer.json: a model of the kind ", type, "; known: BPE");
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (!model.get_or(key, "").empty()) base::fail_unsupported("tokenizer.json: BPE with ", key);
  }
  if (model.get_or("dropout", 0.0) != 0) base::fail_unsupported("tokenizer.json: BPE with dropout");
  BpeOptions o;
  read_normalizer(json, o);
  read_pre_tokenizer(json, o);
  read_decoder(json, o);
  read_post_processor(json, o);
  o.byte_fallback = model.get_or("byte_fallback", false);
  o.unknown = model.get_or("unk_token", "");
  o.fuses_unknown = model.get_or("fuse_unk", false);
  o.ignores_merges = model.get_or("ignore_merges", false);
  std::vector<SpecialToken> special;
  if (const Json* added = part_of(json, "added_tokens")) {
    for (const Json& token : added->as_array()) special.push_back(special_of(token, token.at("id").as_int()));
  }
  return std::make_unique<Bpe>(vocabulary(model.at("vocab")), merges_of(model.at("merges")), std::move(o),
                               std::move(special));
}

std::unique_ptr<Tokenizer> open_tokenizer(const std::string& directory) {
  const fs::path root(directory);
  if (base::file_exists((root / "tokenizer.json").string()))
    return Bpe::from_tokenizer_json(base::read_file((root / "tokenizer.json").string()));
  if (base::file_exists((root / "vocab.json").string()) && base::file_exists((root / "merges.txt").string()))
    return from_merges(root);
  if (base::file_exists((root / "tokenizer.model").string()))
    base::fail_unsupported("a SentencePiece model '", directory, "/tokenizer.model' without tokenizer.json");
  base::fail(base::ErrorCode::not_found, "no tokenizer.json, nor vocab.json and merges.txt, in '", directory,
             "'");
}

}  // namespace trireme::data
