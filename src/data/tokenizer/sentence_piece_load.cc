// Tokenizers of SentencePiece models (sentencepiece_model.proto) without a tokenizer.json beside them.
#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <protozero/pbf_reader.hpp>

#include "base/error.h"
#include "data/tokenizer/bpe.h"
#include "data/tokenizer/characters.h"
#include "data/tokenizer/json_parts.h"
#include "data/tokenizer/sentence_piece_model.h"

namespace trireme::data {
namespace {

constexpr int kAllSpaces = std::numeric_limits<int>::max();

using base::Json;
using protozero::pbf_reader;

std::string_view view_of(pbf_reader& field) {
  const auto view = field.get_view();
  return {view.data(), view.size()};
}

pbf_reader reader_of(std::string_view bytes) { return pbf_reader(bytes.data(), bytes.size()); }

void read_piece(pbf_reader piece, SentencePieceModel& model) {
  SentencePieceModel::Piece& read = model.pieces.emplace_back();
  while (piece.next()) {
    switch (piece.tag()) {
      case 1: read.text = view_of(piece); break;
      case 2: read.score = piece.get_float(); break;
      case 3: read.kind = static_cast<SentencePieceKind>(piece.get_enum()); break;
      default: piece.skip();
    }
  }
}

void read_trainer(pbf_reader trainer, SentencePieceModel& model) {
  while (trainer.next()) {
    switch (trainer.tag()) {
      case 3: model.type = static_cast<SentencePieceModel::Type>(trainer.get_enum()); break;
      case 24: model.rules.suffix_space = trainer.get_bool(); break;
      case 35: model.byte_fallback = trainer.get_bool(); break;
      case 41: model.bos = trainer.get_int32(); break;
      case 42: model.eos = trainer.get_int32(); break;
      default: trainer.skip();
    }
  }
}

void read_normalizer_spec(pbf_reader spec, SentencePieceModel& model) {
  while (spec.next()) {
    switch (spec.tag()) {
      case 2: model.charsmap = view_of(spec); break;
      case 3: model.rules.adds_dummy_prefix = spec.get_bool(); break;
      case 4: model.rules.removes_extra_space = spec.get_bool(); break;
      case 5: model.rules.escapes_space = spec.get_bool(); break;
      default: spec.skip();
    }
  }
}

SentencePieceModel parse(std::string_view bytes) {
  SentencePieceModel model;
  try {
    pbf_reader file = reader_of(bytes);
    while (file.next()) {
      switch (file.tag()) {
        case 1: read_piece(file.get_message(), model); break;
        case 2: read_trainer(file.get_message(), model); break;
        case 3: read_normalizer_spec(file.get_message(), model); break;
        default: file.skip();
      }
      base::require(static_cast<int64_t>(model.pieces.size()) <= kMostTokens, "more than ", kMostTokens,
                    " pieces");
    }
  } catch (const protozero::exception& e) {
    base::fail_invalid("SentencePiece model: ", e.what());
  }
  base::require(!model.pieces.empty(), "SentencePiece model: no pieces");
  return model;
}

/// Reads from a configuration which tokens surround a text and where the dummy space stands; without one, the
/// model's own numbers and rules apply.
void read_config(std::string_view text, SentencePieceModel& model) {
  model.adds_bos = model.bos >= 0 && model.type == SentencePieceModel::Type::bpe;
  if (text.empty()) return;
  const Json json = base::parse_json(text);
  const std::string kind = json.get_or("tokenizer_class", "LlamaTokenizer");
  const auto is = [&](std::string_view name) { return kind.starts_with(name); };
  // Other classes renumber their pieces.
  if (!is("Llama") && !is("CodeLlama") && !is("Gemma") && !is("T5") && !is("MT5"))
    base::fail_unsupported("tokenizer_config.json: a ", kind, " without tokenizer.json");
  const bool is_t5 = is("T5") || is("MT5");
  model.adds_bos = json.get_or("add_bos_token", !is_t5) && model.bos >= 0;
  model.adds_eos = json.get_or("add_eos_token", is_t5) && model.eos >= 0;
  model.prefixes_once = !json.get_or("legacy", true);
  if (!json.get_or("add_prefix_space", true)) model.rules.adds_dummy_prefix = false;
  if (const Json* added = part_of(json, "added_tokens_decoder")) {
    for (const auto& [id, token] : added->as_object())
      model.added.push_back(special_of(token, std::atoll(id.c_str())));
  }
}

std::unique_ptr<PieceModel> bpe_model(const SentencePieceModel& model, int32_t unknown,
                                      std::vector<std::string> texts) {
  // Pieces of equal score have equal rank, so the leftmost pair among them is merged first.
  std::map<float, int32_t, std::greater<>> ranks;
  for (const auto& piece : model.pieces) ranks.emplace(piece.score, 0);
  int32_t next = 0;
  for (auto& [score, rank] : ranks) rank = next++;
  std::vector<int32_t> by_id;
  for (size_t i = 0; i < texts.size(); ++i) {
    const bool is_normal = model.pieces[i].kind == SentencePieceKind::normal;
    by_id.push_back(is_normal ? ranks.at(model.pieces[i].score) : -1);
    const SentencePieceKind kind = model.pieces[i].kind;
    if (kind == SentencePieceKind::control || kind == SentencePieceKind::unknown) texts[i].clear();
  }
  Vocabulary vocabulary(texts);
  const std::vector<BpeMerge> merges = merges_by_rank(vocabulary, by_id);
  return std::make_unique<BpeModel>(std::move(vocabulary), merges,
                                    BpeRules{.byte_level = false,
                                             .byte_fallback = model.byte_fallback,
                                             .fuses_unknown = true,
                                             .unknown = unknown});
}

std::unique_ptr<PieceModel> unigram_of(const SentencePieceModel& model, int32_t unknown,
                                       const std::vector<std::string>& texts) {
  constexpr double kLeftOut = -std::numeric_limits<double>::infinity();
  float most = -std::numeric_limits<float>::infinity(), least = std::numeric_limits<float>::infinity();
  for (const auto& piece : model.pieces) {
    if (piece.kind != SentencePieceKind::normal) continue;
    most = std::max(most, piece.score);
    least = std::min(least, piece.score);
  }
  std::vector<double> scores;
  for (const auto& piece : model.pieces) {
    const bool is_user = piece.kind == SentencePieceKind::user_defined;
    const auto length = static_cast<float>(piece.text.size());
    scores.push_back(is_user                                   ? static_cast<double>(length * most - 0.1f)
                     : piece.kind == SentencePieceKind::normal ? static_cast<double>(piece.score)
                                                               : kLeftOut);
  }
  return unigram_model(
      texts, std::move(scores),
      {.unknown = unknown, .byte_fallback = model.byte_fallback, .is_single = true, .least_score = least});
}

}  // namespace

std::unique_ptr<Tokenizer> tokenizer_of(SentencePieceModel model) {
  TokenizerParts parts;
  std::vector<std::string> kept;
  int32_t unknown = Vocabulary::kNone;
  const bool is_bpe = model.type == SentencePieceModel::Type::bpe;
  for (const auto& [text, score, kind, strips_right] : model.pieces) {
    const auto id = static_cast<int64_t>(parts.tokens.size());
    base::require(std::isfinite(score), "the score of piece ", id, " is no number");
    parts.tokens.push_back(text);
    if (text.empty()) continue;
    if (kind == SentencePieceKind::unknown) unknown = static_cast<int32_t>(id);
    if (kind == SentencePieceKind::control || kind == SentencePieceKind::unknown)
      parts.special.push_back({.content = text, .id = id, .rstrip = strips_right});
    if (kind != SentencePieceKind::user_defined) continue;
    kept.push_back(text);
    if (is_bpe)
      parts.special.push_back({.content = text,
                               .id = id,
                               .rstrip = strips_right,
                               .is_special = false,
                               .is_normalized = !strips_right,
                               .written = text});
  }
  for (SpecialToken& token : model.added) {
    std::erase_if(parts.special, [&](const SpecialToken& t) { return t.id == token.id; });
    token.is_normalized = false;
    parts.special.push_back(std::move(token));
  }
  if (model.adds_bos) parts.before = {model.bos};
  if (model.adds_eos) parts.behind = {model.eos};
  parts.normalizer.push_back(sentence_piece(PrecompiledMap(model.charsmap), model.rules, kept));
  if (model.prefixes_once) {
    SentencePieceRules later = model.rules;
    later.adds_dummy_prefix = false;
    parts.later_normalizer.push_back(sentence_piece(PrecompiledMap(model.charsmap), later, kept));
  }
  parts.decoder.has_bytes = model.byte_fallback;
  parts.decoder.replaced.emplace_back(kSpaceMark, " ");
  // Texts begin with the space that was added before them; if spaces are removed, no text begins with one.
  parts.decoder.strips_start = model.rules.removes_extra_space                              ? kAllSpaces
                               : model.rules.adds_dummy_prefix && !model.rules.suffix_space ? 1
                                                                                            : 0;
  if (is_bpe)
    parts.model = bpe_model(model, unknown, parts.tokens);
  else if (model.type == SentencePieceModel::Type::unigram)
    parts.model = unigram_of(model, unknown, parts.tokens);
  else
    base::fail_unsupported("a SentencePiece model of words or characters (model_type ",
                           static_cast<int>(model.type), ")");
  return std::make_unique<PieceTokenizer>(std::move(parts));
}

std::unique_ptr<Tokenizer> tokenizer_from_sentence_piece(std::string_view bytes, std::string_view config) {
  SentencePieceModel model = parse(bytes);
  read_config(config, model);
  return tokenizer_of(std::move(model));
}

}  // namespace trireme::data
