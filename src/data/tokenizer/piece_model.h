// What turns a piece of text into tokens: byte pairs, Unigram, WordPiece or whole words.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "data/tokenizer/vocabulary.h"

namespace trireme::data {

/// Immutable; any thread.
class PieceModel {
 public:
  virtual ~PieceModel() = default;
  /// Appends the tokens of a piece, well-formed UTF-8 and not empty.
  virtual void append(std::string_view piece, std::vector<int64_t>& ids) const = 0;
};

struct UnigramRules {
  int32_t unknown = Vocabulary::kNone;
  bool byte_fallback = false;
  /// Sums of scores in f32, as SentencePiece has them; else in f64, as the package `tokenizers`.
  bool is_single = false;
  /// The score below which unknown characters lie; none: the least of the tokens.
  std::optional<double> least_score = std::nullopt;
};

/// Unigram: the tokens whose scores add up to most (Viterbi; Kudo 2018). scores[i] belongs to tokens[i]; -inf
/// leaves a token out. Unknown characters in a row are one unknown token, or their bytes.
std::unique_ptr<PieceModel> unigram_model(const std::vector<std::string>& tokens, std::vector<double> scores,
                                          UnigramRules rules);

struct WordPieceRules {
  int32_t unknown = Vocabulary::kNone;
  std::string prefix = "##";     ///< of tokens that continue a word
  size_t most_characters = 100;  ///< a longer word is unknown
};

/// The longest token that begins a word, then the longest that continues it; unknown if one is missing.
std::unique_ptr<PieceModel> word_piece_model(const std::vector<std::string>& tokens, WordPieceRules rules);

/// Words that are tokens.
std::unique_ptr<PieceModel> word_level_model(const std::vector<std::string>& tokens, int32_t unknown);

}  // namespace trireme::data
