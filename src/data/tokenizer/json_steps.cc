// Normalizers, pre-tokenizers, decoders and post-processors of a tokenizer.json.
#include <algorithm>
#include <iterator>

#include "base/error.h"
#include "base/text/base64.h"
#include "data/tokenizer/characters.h"
#include "data/tokenizer/json_parts.h"

namespace trireme::data {
namespace {

using base::fail_unsupported;
using base::Json;

/// The text of {"String": text}; null if it has another form.
const std::string* literal(const Json& pattern) {
  const Json* text = pattern.find("String");
  return text == nullptr ? nullptr : &text->as_string();
}

const std::string& expression(const Json& pattern) { return pattern.at("Regex").as_string(); }

NormalizerStep normalizer_of(const Json& json) {
  const std::string type = type_of(json);
  if (type == "NFC") return unicode_form(UnicodeForm::nfc);
  if (type == "NFD") return unicode_form(UnicodeForm::nfd);
  if (type == "NFKC") return unicode_form(UnicodeForm::nfkc);
  if (type == "NFKD") return unicode_form(UnicodeForm::nfkd);
  if (type == "Lowercase") return lowercase();
  if (type == "StripAccents") return strip_accents();
  if (type == "Strip") return strip_space(json.get_or("strip_left", true), json.get_or("strip_right", true));
  if (type == "Prepend") return prepend(json.at("prepend").as_string());
  if (type == "Nmt") return nmt();
  if (type == "Precompiled")
    return precompiled(PrecompiledMap(base::decode_base64(json.get_or("precompiled_charsmap", ""))));
  if (type == "Replace") {
    const Json& pattern = json.at("pattern");
    const std::string to = json.at("content").as_string();
    if (const std::string* text = literal(pattern)) return replace_text(*text, to);
    return replace_matches(Regex(expression(pattern)), to);
  }
  if (type == "BertNormalizer") {
    const bool lowers = json.get_or("lowercase", true);
    return bert_normalizer({.clean_text = json.get_or("clean_text", true),
                            .handle_chinese_chars = json.get_or("handle_chinese_chars", true),
                            .strip_accents = json.get_or("strip_accents", lowers),
                            .lowercase = lowers});
  }
  fail_unsupported("tokenizer.json: the normalizer ", type);
}

SplitBehavior behavior_of(const std::string& name) {
  if (name == "Removed") return SplitBehavior::removed;
  if (name == "Isolated") return SplitBehavior::isolated;
  if (name == "MergedWithPrevious") return SplitBehavior::merged_with_previous;
  if (name == "MergedWithNext") return SplitBehavior::merged_with_next;
  if (name == "Contiguous") return SplitBehavior::contiguous;
  fail_unsupported("tokenizer.json: pieces that are ", name);
}

PieceStep split_of(const Json& json) {
  const Json& pattern = json.at("pattern");
  const bool inverted = json.get_or("invert", false);
  const SplitBehavior behavior = behavior_of(json.get_or("behavior", "Isolated"));
  if (const std::string* text = literal(pattern)) return split(find_text(*text, inverted), behavior);
  const std::string& regex = expression(pattern);
  // The scanner's words cover the whole text, so that matches and pieces are the same either way.
  const bool keeps_each =
      behavior == SplitBehavior::isolated || (behavior == SplitBehavior::removed && inverted);
  if (const auto known = pattern_of(regex); known && keeps_each) return split_words(*known);
  return split(find_matches(Regex(regex), inverted), behavior);
}

PieceStep metaspace_of(const Json& json) {
  const std::string scheme =
      json.get_or("prepend_scheme", json.get_or("add_prefix_space", true) ? "always" : "never");
  using Prefix = MetaspaceRules::Prefix;
  return metaspace({.mark = json.get_or("replacement", std::string(kSpaceMark)),
                    .prefix = scheme == "always"  ? Prefix::always
                              : scheme == "first" ? Prefix::first
                                                  : Prefix::never,
                    .splits = json.get_or("split", true)});
}

/// All steps except ByteLevel, which consists of several.
PieceStep piece_step_of(const Json& json) {
  const std::string type = type_of(json);
  if (type == "Split") return split_of(json);
  if (type == "Metaspace") return metaspace_of(json);
  if (type == "Digits") {
    const bool is_single = json.get_or("individual_digits", false);
    return split(find_classes(kNumber), is_single ? SplitBehavior::isolated : SplitBehavior::contiguous);
  }
  if (type == "Punctuation")
    return split(find_classes(kPunctuation), behavior_of(json.get_or("behavior", "Isolated")));
  if (type == "WhitespaceSplit") return split(find_classes(kSpace), SplitBehavior::removed);
  if (type == "Whitespace") {
    // The original's expressions for this step count the two joiners as word characters.
    const Regex words(R"([\w\x{200c}\x{200d}]+|[^\w\s\x{200c}\x{200d}]+)");
    return split(find_matches(words, true), SplitBehavior::removed);
  }
  if (type == "BertPreTokenizer") return bert_words();
  if (type == "CharDelimiterSplit")
    return split(find_text(json.at("delimiter").as_string(), false), SplitBehavior::removed);
  fail_unsupported("tokenizer.json: the pre-tokenizer ", type);
}

void read_template(const Json& part, TokenizerParts& parts) {
  bool is_before = true;
  for (const Json& item : part.at("single").as_array()) {
    if (item.contains("Sequence")) {
      is_before = false;
      continue;
    }
    const std::string name = item.at("SpecialToken").at("id").as_string();
    for (const Json& id : part.at("special_tokens").at(name).at("ids").as_array())
      (is_before ? parts.before : parts.behind).push_back(id.as_int());
  }
}

/// The order in which decoders are applied; others would give other texts.
int place_of(std::string_view decoder) {
  constexpr std::string_view kOrder[] = {"ByteLevel",  "Replace",      "Metaspace", "WordPiece",
                                         "BPEDecoder", "ByteFallback", "Fuse",      "Strip"};
  return static_cast<int>(std::find(std::begin(kOrder), std::end(kOrder), decoder) - std::begin(kOrder));
}

void read_one_decoder(const Json& part, DecodeRules& rules) {
  const std::string type = type_of(part);
  if (type == "ByteLevel") {
    rules.is_byte_level = true;
  } else if (type == "Metaspace") {
    const std::string scheme =
        part.get_or("prepend_scheme", part.get_or("add_prefix_space", true) ? "always" : "never");
    const std::string mark = part.get_or("replacement", std::string(kSpaceMark));
    if (scheme != "never") rules.first_mark = mark;
    rules.replaced.emplace_back(mark, " ");
  } else if (type == "Replace" && literal(part.at("pattern")) != nullptr) {
    rules.replaced.emplace_back(*literal(part.at("pattern")), part.at("content").as_string());
  } else if (type == "ByteFallback") {
    rules.has_bytes = true;
  } else if (type == "Strip" && part.get_or("content", " ") == " ") {
    rules.strips_start = part.get_or("start", 0);
    rules.strips_end = part.get_or("stop", 0);
  } else if (type == "WordPiece") {
    rules.is_word_piece = true;
    rules.word_prefix = part.get_or("prefix", "##");
    rules.cleans_up = part.get_or("cleanup", true);
  } else if (type == "BPEDecoder") {
    rules.word_suffix = part.get_or("suffix", "</w>");
  } else if (type != "Fuse") {
    fail_unsupported("tokenizer.json: the decoder ", type);
  }
}

}  // namespace

const Json* part_of(const Json& json, std::string_view key) {
  const Json* part = json.find(key);
  return part == nullptr || part->is_null() ? nullptr : part;
}

std::string type_of(const Json& json) { return json.get_or("type", ""); }

std::vector<const Json*> parts_of(const Json* part, std::string_view list) {
  std::vector<const Json*> parts;
  if (part == nullptr) return parts;
  if (type_of(*part) != "Sequence") return {part};
  for (const Json& inner : part->at(list).as_array()) {
    for (const Json* deeper : parts_of(&inner, list)) parts.push_back(deeper);
  }
  return parts;
}

void read_normalizer(const Json& json, TokenizerParts& parts) {
  for (const Json* part : parts_of(part_of(json, "normalizer"), "normalizers"))
    parts.normalizer.push_back(normalizer_of(*part));
}

void read_pre_tokenizer(const Json& json, TokenizerParts& parts) {
  bool is_alphabet = false;
  for (const Json* part : parts_of(part_of(json, "pre_tokenizer"), "pretokenizers")) {
    if (type_of(*part) != "ByteLevel") {
      const PieceStep step = piece_step_of(*part);
      parts.pre_tokenizer.push_back(is_alphabet ? in_alphabet(step) : step);
      continue;
    }
    if (is_alphabet) fail_unsupported("tokenizer.json: ByteLevel twice");
    if (part->get_or("add_prefix_space", false)) parts.pre_tokenizer.push_back(prefix_space());
    if (part->get_or("use_regex", true)) parts.pre_tokenizer.push_back(split_words(WordPattern::gpt2));
    is_alphabet = true;
  }
  parts.is_byte_level = is_alphabet;
}

void read_decoder(const Json& json, TokenizerParts& parts) {
  const Json* decoder = part_of(json, "decoder");
  parts.decoder.joins_by_space = decoder == nullptr;
  std::string before;
  bool is_one_text = false;  // as decoders behind Fuse and ByteLevel see it; those before see tokens
  for (const Json* part : parts_of(decoder, "decoders")) {
    const std::string type = type_of(*part);
    const bool repeats = type == before && type != "Replace" && type != "Fuse";
    const bool fits = type == "Strip" ? is_one_text : type == "Fuse" || !is_one_text;
    if (!before.empty() && (repeats || !fits || place_of(type) < place_of(before)))
      fail_unsupported("tokenizer.json: the decoder ", type, " behind ", before);
    read_one_decoder(*part, parts.decoder);
    is_one_text = is_one_text || type == "Fuse" || type == "ByteLevel";
    before = type;
  }
}

void read_post_processor(const Json& json, TokenizerParts& parts) {
  for (const Json* part : parts_of(part_of(json, "post_processor"), "processors")) {
    const std::string type = type_of(*part);
    if (type == "TemplateProcessing") {
      read_template(*part, parts);
    } else if (type == "BertProcessing" || type == "RobertaProcessing") {
      parts.before.push_back(part->at("cls").at(size_t{1}).as_int());
      parts.behind.push_back(part->at("sep").at(size_t{1}).as_int());
    } else if (type != "ByteLevel") {
      fail_unsupported("tokenizer.json: the post-processor ", type);
    }
  }
}

}  // namespace trireme::data
