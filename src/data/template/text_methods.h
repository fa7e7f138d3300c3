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
/// At most `most` times, from the left; below 0: everywhere.
std::string replaced_text(std::string_view text, std::string_view from, std::string_view to, int64_t most,
                          Budget& budget);
/// By a separator (null: runs of white space) into `most` + 1 parts at most; below 0: any.
Value::List split_text(std::string_view text, const std::string* separator, int64_t most, bool from_right);
Value::List text_lines(std::string_view text, bool keeps_ends);
/// The place of `part` in characters, -1 if it is not there.
int64_t find_text_at(std::string_view text, std::string_view part, bool from_right);

}  // namespace trireme::data::jinja
