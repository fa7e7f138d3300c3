// Python's methods of strings on UTF-8.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "data/template/value.h"

namespace trireme::data::jinja {

/// Without the characters of `set` at the ends; none: white space.
std::string_view stripped(std::string_view text, const std::string* set, bool left, bool right);
std::string upper_text(std::string_view text);
std::string lower_text(std::string_view text);
/// The first letter of the text large and all others small; `every_word`: of each word.
std::string capital_text(std::string_view text, bool every_word);
/// Small letters large and the other way round.
std::string swapped_case(std::string_view text);
/// For comparisons without case: of ß ss.
std::string folded_case(std::string_view text);
/// Whether words begin with large letters and have no others.
bool is_title(std::string_view text);
/// A text amid `fill` (one character) up to a width in characters.
enum class Side { left, right, both };
std::string padded_text(std::string_view text, int64_t width, std::string_view fill, Side side,
                        Budget& budget);
/// Jinja's filter `title`, whose words begin only behind white space, '-' and opening brackets.
std::string title_text(std::string_view text);
/// At most `most` times, from the left; below 0: everywhere.
std::string replaced_text(std::string_view text, std::string_view from, std::string_view to, int64_t most,
                          Budget& budget);
/// What to split by, at most how often (below 0: everywhere), and from which end.
struct SplitRules {
  const std::string* separator = nullptr;  ///< null: runs of white space
  int64_t most = -1;
  bool from_right = false;
};
Value::List split_text(std::string_view text, const SplitRules& rules, Budget& budget);
Value::List text_lines(std::string_view text, bool keeps_ends, Budget& budget);
/// A part of a text between two places in characters, below 0 from the end, as Python's slices mean them.
struct TextRange {
  std::string_view text;
  int64_t begin = 0;      ///< in characters
  bool is_there = false;  ///< not where the first place is behind the text or behind the last
};
TextRange range_of(std::string_view text, int64_t begin, int64_t end);
/// The place of `part` in the whole text, in characters, -1 if it is not there.
int64_t find_text_at(const TextRange& range, std::string_view part, bool from_right);
/// How often a part occurs, without overlaps; an empty one around every character.
int64_t count_in(const TextRange& range, std::string_view part);

/// The first byte of `part` in `text` at or after `from`, npos if it is not there. In linear time, which
/// std::string_view::find is not: templates choose both texts.
size_t find_part(std::string_view text, std::string_view part, size_t from = 0);

}  // namespace trireme::data::jinja
