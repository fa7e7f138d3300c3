// The methods of Python's strings; changes of case use utf8proc's tables.
#include "data/template/text_methods.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstring>
#include <unordered_set>

#include "base/error.h"
#include "base/utf8.h"
#include "data/template/character_kinds.h"

namespace trireme::data::jinja {
namespace {

/// The white space of Python's str.strip and str.split.
bool is_space(char32_t c) {
  return (c >= 9 && c <= 13) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

void append_upper(std::string& out, char32_t code) {
  if (code == 0xDF) {
    out += "SS";
    return;
  }
  base::append_utf8(out, static_cast<char32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(code))));
}

void append_lower(std::string& out, char32_t code) {
  base::append_utf8(out, static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(code))));
}

template <class Append>
std::string mapped(std::string_view text, Append append) {
  std::string out;
  for (size_t at = 0; at < text.size();) append(out, base::next_code_point(text, at));
  return out;
}

/// Where the last character of a text begins.
size_t last_character(std::string_view text) {
  size_t begin = text.size() - 1;
  while (begin > 0 && (static_cast<uint8_t>(text[begin]) & 0xC0) == 0x80) --begin;
  return begin;
}

/// What a part costs beside its bytes: a value, in a list that grows, and a text of its own.
constexpr uint64_t kPartBytes = 3 * sizeof(Value) + 64;

void add_part(Value::List& parts, std::string_view part, Budget& budget) {
  budget.take(kPartBytes);
  parts.push_back(part);
}

Value::List split_at_space(std::string_view text, int64_t most, Budget& budget) {
  Value::List parts;
  size_t at = 0;
  for (;;) {
    const std::string_view rest = stripped(text.substr(at), nullptr, true, false);
    if (rest.empty()) return parts;
    at = text.size() - rest.size();
    if (most >= 0 && static_cast<int64_t>(parts.size()) == most) {
      add_part(parts, rest, budget);
      return parts;
    }
    size_t end = at;
    for (size_t next = at; next < text.size(); end = next) {
      if (is_space(base::next_code_point(text, next))) break;
    }
    add_part(parts, text.substr(at, end - at), budget);
    at = end;
  }
}

/// The same from the right.
Value::List split_at_last_space(std::string_view text, int64_t most, Budget& budget) {
  Value::List parts;
  for (;;) {
    text = stripped(text, nullptr, false, true);
    if (text.empty()) break;
    if (most >= 0 && static_cast<int64_t>(parts.size()) == most) {
      add_part(parts, text, budget);
      break;
    }
    size_t begin = text.size();
    while (begin > 0) {
      const size_t at = last_character(text.substr(0, begin));
      size_t next = at;
      if (is_space(base::next_code_point(text, next))) break;
      begin = at;
    }
    add_part(parts, text.substr(begin), budget);
    text = text.substr(0, begin);
  }
  std::reverse(parts.begin(), parts.end());
  return parts;
}

/// The last place of `part`, npos if it is not there. Knuth, Morris & Pratt 1977, from the end: linear.
size_t find_last(std::string_view text, std::string_view part) {
  if (part.empty()) return text.size();
  const size_t n = part.size();
  const auto from_end = [](std::string_view s, size_t i) { return s[s.size() - 1 - i]; };
  std::vector<size_t> borders(n);  // of each end of `part`: its longest border
  for (size_t i = 1, length = 0; i < n; ++i) {
    while (length > 0 && from_end(part, i) != from_end(part, length)) length = borders[length - 1];
    length += from_end(part, i) == from_end(part, length) ? 1 : 0;
    borders[i] = length;
  }
  for (size_t i = 0, length = 0; i < text.size(); ++i) {
    while (length > 0 && from_end(text, i) != from_end(part, length)) length = borders[length - 1];
    length += from_end(text, i) == from_end(part, length) ? 1 : 0;
    if (length == n) return text.size() - 1 - i;
  }
  return std::string_view::npos;
}

/// Characters by which texts are stripped.
class CharacterSet {
 public:
  explicit CharacterSet(std::string_view text) {
    for (const std::string_view character : characters_of(text)) characters_.insert(character);
  }
  bool contains(std::string_view character) const { return characters_.contains(character); }

 private:
  std::unordered_set<std::string_view> characters_;
};

}  // namespace

size_t find_part(std::string_view text, std::string_view part, size_t from) {
  if (from > text.size()) return std::string_view::npos;
  const void* found = memmem(text.data() + from, text.size() - from, part.data(), part.size());
  return found == nullptr ? std::string_view::npos
                          : static_cast<size_t>(static_cast<const char*>(found) - text.data());
}

std::string_view stripped(std::string_view text, const std::string* set, bool left, bool right) {
  const CharacterSet characters(set == nullptr ? std::string_view() : std::string_view(*set));
  const auto goes = [&](std::string_view character) {
    size_t at = 0;
    return set == nullptr ? is_space(base::next_code_point(character, at)) : characters.contains(character);
  };
  while (left && !text.empty()) {
    size_t next = 0;
    base::next_code_point(text, next);
    if (!goes(text.substr(0, next))) break;
    text.remove_prefix(next);
  }
  while (right && !text.empty()) {
    const size_t begin = last_character(text);
    if (!goes(text.substr(begin))) break;
    text.remove_suffix(text.size() - begin);
  }
  return text;
}

std::string upper_text(std::string_view text) { return mapped(text, append_upper); }
std::string lower_text(std::string_view text) { return mapped(text, append_lower); }

std::string capital_text(std::string_view text, bool every_word) {
  bool is_start = true;
  return mapped(text, [&](std::string& out, char32_t code) {
    is_start ? append_upper(out, code) : append_lower(out, code);
    is_start = every_word && !is_alpha(code);
  });
}

std::string swapped_case(std::string_view text) {
  return mapped(text, [](std::string& out, char32_t code) {
    std::string large, same;
    append_upper(large, code);
    base::append_utf8(same, code);
    large != same ? void(out += large) : append_lower(out, code);
  });
}

std::string folded_case(std::string_view text) {
  return mapped(text, [](std::string& out, char32_t code) {
    utf8proc_int32_t folded[8];
    int boundary = 0;
    const auto count =
        utf8proc_decompose_char(static_cast<utf8proc_int32_t>(code), folded, 8, UTF8PROC_CASEFOLD, &boundary);
    for (utf8proc_ssize_t i = 0; i < std::min<utf8proc_ssize_t>(count, 8); ++i)
      base::append_utf8(out, static_cast<char32_t>(folded[i]));
  });
}

bool is_title(std::string_view text) {
  bool is_inside = false, has_any = false;
  for (size_t at = 0; at < text.size();) {
    const utf8proc_category_t c =
        utf8proc_category(static_cast<utf8proc_int32_t>(base::next_code_point(text, at)));
    const bool is_large = c == UTF8PROC_CATEGORY_LU || c == UTF8PROC_CATEGORY_LT;
    const bool is_cased = is_large || c == UTF8PROC_CATEGORY_LL;
    if (is_cased && is_large == is_inside) return false;
    is_inside = is_cased;
    has_any = has_any || is_cased;
  }
  return has_any;
}

std::string padded_text(std::string_view text, int64_t width, std::string_view fill, Side side,
                        Budget& budget) {
  base::require(length_of(fill) == 1, "template: texts are filled with one character");
  const int64_t missing = std::max<int64_t>(width - length_of(text), 0);
  budget.take(static_cast<uint64_t>(missing) * fill.size() + text.size());
  const int64_t before = side == Side::right  ? 0
                         : side == Side::left ? missing
                                              : missing / 2 + (missing & width & 1);
  std::string out;
  for (int64_t i = 0; i < before; ++i) out += fill;
  out += text;
  for (int64_t i = before; i < missing; ++i) out += fill;
  return out;
}

std::string title_text(std::string_view text) {
  bool is_start = true;
  return mapped(text, [&](std::string& out, char32_t code) {
    is_start ? append_upper(out, code) : append_lower(out, code);
    is_start = is_space(code) || code == '-' || code == '(' || code == '{' || code == '[' || code == '<';
  });
}

std::string replaced_text(std::string_view text, std::string_view from, std::string_view to, int64_t most,
                          Budget& budget) {
  std::string out;
  size_t at = 0;
  int64_t count = 0;
  while (most < 0 || count < most) {
    size_t found = from.empty() ? at : find_part(text, from, at);
    if (found == std::string_view::npos || found > text.size()) break;
    ++count;
    budget.take(to.size() + found - at);
    out.append(text.substr(at, found - at)).append(to);
    at = found + from.size();
    if (!from.empty()) continue;
    if (at >= text.size()) {
      at = text.size();
      break;
    }
    size_t next = at;  // an empty text occurs before every character
    base::next_code_point(text, next);
    out.append(text.substr(at, next - at));
    at = next;
  }
  budget.take(text.size() - at);
  return out.append(text.substr(at));
}

Value::List split_text(std::string_view text, const SplitRules& rules, Budget& budget) {
  const auto& [separator, most, from_right] = rules;
  if (separator == nullptr)
    return from_right ? split_at_last_space(text, most, budget) : split_at_space(text, most, budget);
  const std::string& mark = *separator;
  base::require(!mark.empty(), "template: split by an empty separator");
  Value::List parts;
  while (most < 0 || static_cast<int64_t>(parts.size()) < most) {
    const size_t found = from_right ? find_last(text, mark) : find_part(text, mark);
    if (found == std::string_view::npos) break;
    add_part(parts, from_right ? text.substr(found + mark.size()) : text.substr(0, found), budget);
    text = from_right ? text.substr(0, found) : text.substr(found + mark.size());
  }
  add_part(parts, text, budget);
  if (from_right) std::reverse(parts.begin(), parts.end());
  return parts;
}

Value::List text_lines(std::string_view text, bool keeps_ends, Budget& budget) {
  Value::List lines;
  while (!text.empty()) {
    const size_t end = std::min(text.find_first_of("\r\n"), text.size());
    const size_t behind = std::min(text.size(), end + (text.substr(end, 2) == "\r\n" ? 2 : 1));
    add_part(lines, text.substr(0, keeps_ends ? behind : end), budget);
    text.remove_prefix(behind);
  }
  return lines;
}

TextRange range_of(std::string_view text, int64_t begin, int64_t end) {
  const int64_t size = length_of(text);
  if (begin < 0) begin = std::max<int64_t>(begin + size, 0);
  if (end < 0) end = std::max<int64_t>(end + size, 0);
  end = std::min(end, size);
  if (begin > size || begin > end) return {};
  const auto byte_of = [&](int64_t place) {
    size_t at = 0;
    for (int64_t i = 0; i < place; ++i) base::next_code_point(text, at);
    return at;
  };
  const size_t first = byte_of(begin);
  return {text.substr(first, byte_of(end) - first), begin, true};
}

int64_t find_text_at(const TextRange& range, std::string_view part, bool from_right) {
  if (!range.is_there) return -1;
  const size_t found = from_right ? find_last(range.text, part) : find_part(range.text, part);
  if (found == std::string_view::npos) return -1;
  return range.begin + length_of(range.text.substr(0, found));
}

int64_t count_in(const TextRange& range, std::string_view part) {
  if (!range.is_there) return 0;
  if (part.empty()) return length_of(range.text) + 1;
  int64_t found = 0;
  for (size_t at = find_part(range.text, part); at != std::string::npos;
       at = find_part(range.text, part, at + part.size()))
    ++found;
  return found;
}

}  // namespace trireme::data::jinja
