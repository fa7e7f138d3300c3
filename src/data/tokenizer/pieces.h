// A text cut into pieces, and the steps that cut it: the pre-tokenizers of tokenizer.json.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizer/regex.h"
#include "data/tokenizer/word_pattern.h"

namespace trireme::data {

/// Pieces one behind the other.
struct Pieces {
  std::string text;
  std::vector<size_t> ends;  ///< of each piece in `text`; none is empty

  size_t size() const { return ends.size(); }
  std::string_view operator[](size_t i) const {
    const size_t begin = i == 0 ? 0 : ends[i - 1];
    return std::string_view(text).substr(begin, ends[i] - begin);
  }
};

/// A stretch of a piece that a step tells apart. An empty match parts what lies before it from what follows.
struct Stretch {
  size_t begin, end;  // bytes of the piece
  bool is_match;
};

/// What becomes of stretches that match.
enum class SplitBehavior { removed, isolated, merged_with_previous, merged_with_next, contiguous };

/// One step; any thread. `is_first`: the pieces begin where the whole text begins.
using PieceStep = std::function<void(Pieces&, bool is_first)>;
/// Appends the stretches of a piece, in order and without gaps.
using Finder = std::function<void(std::string_view, std::vector<Stretch>&)>;

PieceStep split(Finder finder, SplitBehavior behavior);
/// Words by one of the scanners, each a piece.
PieceStep split_words(WordPattern pattern);

/// `inverted`: what lies between matches counts as match.
Finder find_matches(Regex regex, bool inverted);
Finder find_text(std::string text, bool inverted);
/// Single characters of one of these classes (CharacterClass).
Finder find_classes(uint8_t classes);

struct MetaspaceRules {
  std::string mark;  ///< what spaces become
  enum class Prefix : uint8_t { never, first, always } prefix = Prefix::always;
  bool splits = true;  ///< a piece begins at each mark
};
PieceStep metaspace(MetaspaceRules rules);
/// BERT's words: at white space, which goes, and around each mark of punctuation.
PieceStep bert_words();
/// A space before each piece that begins without one.
PieceStep prefix_space();
/// The step sees GPT-2's alphabet instead of bytes, as it does where it comes behind `ByteLevel`.
PieceStep in_alphabet(PieceStep step);

}  // namespace trireme::data
