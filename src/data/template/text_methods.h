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
/// The place of `part` in characters, -1 if it is not there.
int64_t find_text_at(std::string_view text, std::string_view part, bool from_right);

/// The first byte of `part` in `text` at or after `from`, npos if it is not there. In linear time, which
/// std::string_view::find is not: templates choose both texts.
size_t find_part(std::string_view text, std::string_view part, size_t from = 0);

}  // namespace trireme::data::jinja
