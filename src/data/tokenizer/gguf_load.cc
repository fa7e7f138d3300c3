// Tokenizers from the metadata of GGUF files (tokenizer.ggml.*).
#include <algorithm>

#include "base/error.h"
#include "data/tokenizer/json_parts.h"
#include "data/tokenizer/sentence_piece_model.h"
#include "tensor/gguf/gguf_file.h"
#include "tensor/gguf/gguf_words.h"

namespace trireme::data {
namespace {

using tensor::GgufMetadata;

/// The types of tokens; all normal if the file states none.
std::vector<SentencePieceKind> kinds_of(const GgufMetadata& m, size_t count) {
  std::vector<SentencePieceKind> kinds(count, SentencePieceKind::normal);
  if (!m.has("tokenizer.ggml.token_type")) return kinds;
  const std::vector<int64_t> types = m.integers("tokenizer.ggml.token_type");
  base::require(types.size() == count, "GGUF: ", types.size(), " token types for ", count, " tokens");
  for (size_t i = 0; i < count; ++i) kinds[i] = static_cast<SentencePieceKind>(types[i]);
  return kinds;
}

std::vector<std::string> tokens_of(const GgufMetadata& m) {
  std::vector<std::string> tokens;
  for (const std::string_view text : m.texts("tokenizer.ggml.tokens")) tokens.emplace_back(text);
  base::require(!tokens.empty() && static_cast<int64_t>(tokens.size()) <= kMostTokens,
                "GGUF: ", tokens.size(), " tokens");
  return tokens;
}

int64_t id_of(const GgufMetadata& m, const char* key) {
  return m.integer(base::concat("tokenizer.ggml.", key), -1);
}

/// Control tokens are special; user-defined ones are shown.
void add_special(TokenizerParts& parts, const std::vector<SentencePieceKind>& kinds) {
  for (size_t i = 0; i < kinds.size(); ++i) {
    const bool is_user = kinds[i] == SentencePieceKind::user_defined;
    if (kinds[i] != SentencePieceKind::control && kinds[i] != SentencePieceKind::unknown && !is_user)
      continue;
    if (!parts.tokens[i].empty())
      parts.special.push_back(
          {.content = parts.tokens[i], .id = static_cast<int64_t>(i), .is_special = !is_user});
  }
}

/// Special tokens of Phi-3 swallow the white space behind them. GGUF does not state it, and readers know it
/// by the model's name (llama.cpp, src/llama-vocab.cpp).
bool is_phi3(const GgufMetadata& m) {
  std::string name(m.text("general.name", ""));
  for (char& c : name) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
  return name.find("phi-3") != std::string::npos || name.find("phi3") != std::string::npos;
}

std::unique_ptr<Tokenizer> sentence_piece_of(const GgufMetadata& m, bool is_unigram) {
  SentencePieceModel model;
  const std::vector<std::string> tokens = tokens_of(m);
  const std::vector<double> scores = m.numbers("tokenizer.ggml.scores");
  base::require(scores.size() == tokens.size(), "GGUF: ", scores.size(), " scores for ", tokens.size(),
                " tokens");
  const std::vector<SentencePieceKind> kinds = kinds_of(m, tokens.size());
  const bool strips = is_phi3(m);
  for (size_t i = 0; i < tokens.size(); ++i) {
    const bool is_exempt = tokens[i] == "<unk>" || tokens[i] == "<s>" || tokens[i] == "<|endoftext|>";
    model.pieces.push_back({tokens[i], static_cast<float>(scores[i]), kinds[i], strips && !is_exempt});
  }
  model.type = is_unigram ? SentencePieceModel::Type::unigram : SentencePieceModel::Type::bpe;
  model.byte_fallback = std::find(kinds.begin(), kinds.end(), SentencePieceKind::byte) != kinds.end();
  model.rules.adds_dummy_prefix = m.flag("tokenizer.ggml.add_space_prefix", true);
  model.rules.removes_extra_space = m.flag("tokenizer.ggml.remove_extra_whitespaces", is_unigram);
  if (m.has("tokenizer.ggml.precompiled_charsmap")) {
    for (const int64_t byte : m.integers("tokenizer.ggml.precompiled_charsmap"))
      model.charsmap.push_back(static_cast<char>(byte));
  }
  model.bos = id_of(m, "bos_token_id");
  model.eos = id_of(m, "eos_token_id");
  model.adds_bos = m.flag("tokenizer.ggml.add_bos_token", !is_unigram) && model.bos >= 0;
  model.adds_eos = m.flag("tokenizer.ggml.add_eos_token", is_unigram) && model.eos >= 0;
  return tokenizer_of(std::move(model));
}

std::unique_ptr<Tokenizer> byte_pairs_of(const GgufMetadata& m) {
  TokenizerParts parts;
  parts.tokens = tokens_of(m);
  add_special(parts, kinds_of(m, parts.tokens.size()));
  const tensor::GgufWords& words = tensor::gguf_words(m.text("tokenizer.ggml.pre", "default"));
  for (const std::string_view pattern : words.patterns) {
    const auto scanner = pattern_of(pattern);
    parts.pre_tokenizer.push_back(scanner
                                      ? split_words(*scanner)
                                      : split(find_matches(Regex(pattern), false), SplitBehavior::isolated));
  }
  std::vector<std::pair<std::string, std::string>> merges;
  for (const std::string_view merge : m.texts("tokenizer.ggml.merges")) merges.push_back(split_merge(merge));
  parts.decoder.is_byte_level = true;
  parts.model = bpe_of(parts.tokens, std::move(merges), {.ignores_merges = words.ignores_merges});
  const bool is_llama = words.ignores_merges;  // Llama 3 files do not state it
  if (m.flag("tokenizer.ggml.add_bos_token", is_llama) && id_of(m, "bos_token_id") >= 0)
    parts.before = {id_of(m, "bos_token_id")};
  if (m.flag("tokenizer.ggml.add_eos_token", false) && id_of(m, "eos_token_id") >= 0)
    parts.behind = {id_of(m, "eos_token_id")};
  return std::make_unique<PieceTokenizer>(std::move(parts));
}

/// Tokens that begin a word have a leading U+2581, and others have no prefix: the opposite convention of
/// vocab.txt.
std::unique_ptr<Tokenizer> word_piece_of(const GgufMetadata& m) {
  TokenizerParts parts;
  parts.tokens = tokens_of(m);
  const std::vector<SentencePieceKind> kinds = kinds_of(m, parts.tokens.size());
  add_special(parts, kinds);
  for (size_t i = 0; i < kinds.size(); ++i) {
    std::string& token = parts.tokens[i];
    if (kinds[i] != SentencePieceKind::normal) continue;
    token = token.starts_with(kSpaceMark) ? token.substr(kSpaceMark.size()) : "##" + token;
  }
  parts.normalizer.push_back(bert_normalizer({}));
  parts.pre_tokenizer.push_back(bert_words());
  parts.decoder.is_word_piece = true;
  parts.decoder.word_prefix = "##";
  const int64_t unknown = id_of(m, "unknown_token_id");
  parts.model = word_piece_model(parts.tokens, {.unknown = static_cast<int32_t>(unknown)});
  const int64_t begin = id_of(m, "cls_token_id") >= 0 ? id_of(m, "cls_token_id") : id_of(m, "bos_token_id");
  const int64_t end = id_of(m, "seperator_token_id");  // the format's own spelling
  if (begin >= 0) parts.before = {begin};
  if (end >= 0) parts.behind = {end};
  return std::make_unique<PieceTokenizer>(std::move(parts));
}

}  // namespace

std::unique_ptr<Tokenizer> tokenizer_from_gguf(const GgufMetadata& metadata) {
  const std::string_view kind = metadata.text("tokenizer.ggml.model");
  if (kind == "llama") return sentence_piece_of(metadata, false);
  if (kind == "t5") return sentence_piece_of(metadata, true);
  if (kind == "gpt2") return byte_pairs_of(metadata);
  if (kind == "bert") return word_piece_of(metadata);
  base::fail_unsupported("GGUF: a tokenizer of the kind '", kind, "'; known: llama, gpt2, bert, t5");
}

}  // namespace trireme::data
