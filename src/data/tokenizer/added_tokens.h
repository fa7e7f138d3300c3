// Tokens that are found in raw text before anything else happens to it: <s>, <|im_end|> and the like.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/text/piece_trie.h"

namespace trireme::data {

struct SpecialToken {
  std::string content;
  int64_t id = 0;
  bool single_word = false;    ///< only between characters that are no word's
  bool lstrip = false;         ///< swallows white space before it
  bool rstrip = false;         ///< and after it
  bool is_special = true;      ///< left out of decoded text
  bool is_normalized = false;  ///< looked for in the normalized text
  std::string written = {};    ///< as it stands there; empty: as the normalizer writes it
};

/// A set of them. Immutable; any thread. Work is in proportion to the text.
class AddedTokens {
 public:
  explicit AddedTokens(std::vector<SpecialToken> tokens);

  struct Found {
    size_t begin, end;  ///< bytes, with the white space that the token swallows
    const SpecialToken* token;
  };
  /// The first one at or after `from`, the longest of those that begin there.
  std::optional<Found> find(std::string_view text, size_t from) const;

 private:
  std::vector<SpecialToken> tokens_;
  PieceTrie trie_;
  bool begins_[256] = {};
};

}  // namespace trireme::data
