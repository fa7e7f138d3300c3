// Byte pair encoding of one piece: GPT-2's over bytes, SentencePiece's over characters.
#pragma once

#include <array>
#include <atomic>
#include <string>
#include <utility>
#include <vector>

#include "data/tokenizer/piece_model.h"

namespace trireme::data {

struct BpeRules {
  bool byte_level = true;               ///< pieces are merged from bytes, else from characters
  bool byte_fallback = false;           ///< a character without a token becomes its bytes, <0x0A>
  bool fuses_unknown = false;           ///< several in a row are one
  bool ignores_merges = false;          ///< a piece that is a token is taken at once
  int32_t unknown = Vocabulary::kNone;  ///< the token of what has none; none: it is left out
  std::string prefix;                   ///< of a token that continues a piece
  std::string suffix;                   ///< of a token that ends one, "</w>"
};

/// A pair of neighbours that becomes one token.
struct BpeMerge {
  int32_t left, right, id;
  int32_t rank;  ///< the lowest goes first
};

/// Merges by the texts of their tokens, ranked in their order. Throws invalid_argument for tokens that are
/// not there.
std::vector<BpeMerge> merges_by_text(const Vocabulary& vocabulary,
                                     const std::vector<std::pair<std::string, std::string>>& merges,
                                     const std::string& prefix);
/// Every way to put a token together from two others, ranked by ranks[id of the result]; below 0: none.
std::vector<BpeMerge> merges_by_rank(const Vocabulary& vocabulary, const std::vector<int32_t>& ranks);

class BpeModel : public PieceModel {
 public:
  /// The texts of a byte-level vocabulary are bytes, not GPT-2's alphabet.
  BpeModel(Vocabulary vocabulary, const std::vector<BpeMerge>& merges, BpeRules rules);
  void append(std::string_view piece, std::vector<int64_t>& ids) const override;

 private:
  struct Slot {
    uint64_t pair = UINT64_MAX;
    int32_t rank = 0, id = 0;
  };
  void append_word(std::string_view word, std::vector<int64_t>& ids) const;
  bool joins_words(const std::vector<BpeMerge>& merges) const;
  const Slot* find(int32_t left, int32_t right) const;
  void insert(const BpeMerge& merge);
  void append_symbols(std::string_view piece, std::vector<int32_t>& symbols) const;
  void append_character(std::string_view piece, size_t begin, size_t end,
                        std::vector<int32_t>& symbols) const;
  void append_unknown(std::vector<int32_t>& symbols) const;
  void merge_few(std::vector<int32_t>& symbols) const;
  void merge_many(std::vector<int32_t>& symbols) const;

  Vocabulary vocabulary_;
  BpeRules rules_;
  std::vector<Slot> slots_;              // of merges; a power of two, at most half full
  std::array<int32_t, 256> byte_ids_{};  // the token of each byte, kNone without one
  /// No merge reaches over the beginning of a word (U+2581 behind another character): words merge by
  /// themselves.
  bool has_words_ = false;
  /// By id, whether the token's own text becomes that one token: 0 not known yet, 1 yes, 2 no.
  mutable std::vector<std::atomic<uint8_t>> is_whole_;
};

}  // namespace trireme::data
