// What happens to a text before it is cut into words: forms of Unicode, case, accents, replacements.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "data/text/bert_text.h"
#include "data/tokenizer/regex.h"

namespace trireme::data {

/// One step; any thread. Text is well-formed UTF-8 before and after.
using NormalizerStep = std::function<void(std::string&)>;

enum class UnicodeForm { nfc, nfd, nfkc, nfkd };
NormalizerStep unicode_form(UnicodeForm form);
/// Every character by itself: no final sigma.
NormalizerStep lowercase();
/// Leaves combining marks out; those that letters are composed with only after `nfd`.
NormalizerStep strip_accents();
NormalizerStep strip_space(bool left, bool right);
/// Puts `text` before what is not empty.
NormalizerStep prepend(std::string text);
NormalizerStep replace_text(std::string from, std::string to);
NormalizerStep replace_matches(Regex from, std::string to);
/// SentencePiece's `nmt` rules: control characters go, rare spaces become spaces.
NormalizerStep nmt();
/// Hugging Face's BertNormalizer: the text, not its words.
NormalizerStep bert_normalizer(BertTextRules rules);

/// SentencePiece's normalizer as a table: the longest known beginning is replaced.
class PrecompiledMap {
 public:
  /// From `precompiled_charsmap`. Throws invalid_argument for a table that is none.
  explicit PrecompiledMap(std::string_view blob);
  struct Found {
    size_t bytes = 0;  ///< of the text that match; 0: nothing known
    std::string_view text;
  };
  Found longest(std::string_view text) const { return find(text, true); }
  Found shortest(std::string_view text) const { return find(text, false); }

 private:
  Found find(std::string_view text, bool wants_longest) const;
  uint32_t unit(size_t at) const;
  std::vector<uint32_t> units_;  // a double array, Darts' format
  std::string texts_;            // each ends with a 0
};

/// The map as the package `tokenizers` applies it: to characters as people see them (grapheme clusters) of up
/// to five bytes, else to code points, each replaced by what its shortest known beginning stands for.
NormalizerStep precompiled(PrecompiledMap map);

struct SentencePieceRules {
  bool adds_dummy_prefix = true;    ///< a space before the text
  bool removes_extra_space = true;  ///< at both ends, and of several in a row all but one
  bool escapes_space = true;        ///< spaces are U+2581
  bool suffix_space = false;        ///< the dummy space stands behind the text
};
/// SentencePiece's normalizer in full. `kept` are texts that stay as they are.
NormalizerStep sentence_piece(PrecompiledMap map, SentencePieceRules rules, std::vector<std::string> kept);

inline constexpr std::string_view kSpaceMark = "\xE2\x96\x81";  // U+2581, SentencePiece's space

}  // namespace trireme::data
