// Characters of expressions: escapes by number, letters that stand for several, intervals.
#include "data/tokenizer/regex_reader.h"

#include <utf8proc.h>

#include <algorithm>

#include "base/error.h"
#include "base/utf8.h"

namespace trireme::data {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; }
int hex_value(char c) {
  return is_digit(c) ? c - '0' : lower(c) >= 'a' && lower(c) <= 'f' ? lower(c) - 'a' + 10 : -1;
}

/// Letters that stand for several of ASCII, the longest first.
constexpr Ligature kLigatures[] = {
    {"ffi", "\\x{fb03}"}, {"ffl", "\\x{fb04}"},         {"ff", "\\x{fb00}"},           {"fi", "\\x{fb01}"},
    {"fl", "\\x{fb02}"},  {"ss", "[\\x{df}\\x{1e9e}]"}, {"st", "[\\x{fb05}\\x{fb06}]"}};

}  // namespace

void refuse_regex(std::string_view what) { base::fail_unsupported("regular expression: ", what); }
void fail_regex(std::string_view what) { base::fail_invalid("regular expression: ", what); }

std::string quoted(char32_t code) {
  std::string text;
  if (code >= 0x80)
    base::append_utf8(text, code);
  else if (is_digit(static_cast<char>(code)) || is_letter(static_cast<char>(code)))
    text.push_back(static_cast<char>(code));
  else
    text = base::concat("\\x{", "0123456789abcdef"[code >> 4], "0123456789abcdef"[code & 15], "}");
  return text;
}

std::string letters_of(char32_t code) {
  std::string text;
  if (code < 0x80) return text;
  utf8proc_int32_t folded[4];
  int boundary = 0;
  const auto count =
      utf8proc_decompose_char(static_cast<utf8proc_int32_t>(code), folded, 4, UTF8PROC_CASEFOLD, &boundary);
  for (utf8proc_ssize_t i = 0; count > 1 && i < std::min<utf8proc_ssize_t>(count, 4); ++i)
    text += quoted(static_cast<char32_t>(folded[i]));
  return text;
}

std::optional<Ligature> ligature_at(std::string_view text) {
  for (const Ligature& l : kLigatures) {
    const size_t size = l.letters.size();
    if (text.size() >= size && std::equal(l.letters.begin(), l.letters.end(), text.begin(),
                                          [](char a, char b) { return a == lower(b); }))
      return l;
  }
  return std::nullopt;
}

bool PatternReader::skip(std::string_view text) {
  if (!in_.substr(at_).starts_with(text)) return false;
  at_ += text.size();
  return true;
}

/// Digits of a base, at most `most`; nothing where there are none.
std::optional<char32_t> PatternReader::number(uint32_t base, size_t most) {
  char32_t value = 0;
  const size_t begin = at_;
  while (at_ - begin < most && hex_value(peek()) >= 0 && static_cast<uint32_t>(hex_value(peek())) < base) {
    value = value * base + static_cast<uint32_t>(hex_value(in_[at_++]));
    if (value > 0x10FFFF) fail_regex("a character above U+10FFFF");
  }
  return at_ == begin ? std::nullopt : std::optional(value);
}

char32_t PatternReader::braced(uint32_t base) {
  const auto code = number(base, 12);
  if (peek() == ' ') refuse_regex("several characters in \\x{...}");
  if (!code || !skip("}")) fail_regex("a character's number has no end");
  return *code;
}

/// Behind \x: two digits. From 80 on they are bytes of UTF-8, as are those that follow.
char32_t PatternReader::hex_code() {
  if (skip("{")) return braced(16);
  std::string bytes(1, static_cast<char>(number(16, 2).value_or(0)));
  const auto first = static_cast<uint8_t>(bytes[0]);
  if (first < 0x80) return first;
  const int tail = first >= 0xF0 ? 3 : first >= 0xE0 ? 2 : 1;
  for (int i = 0; i < tail && skip("\\x"); ++i) bytes.push_back(static_cast<char>(number(16, 2).value_or(0)));
  size_t read = 0;
  const char32_t code = base::next_code_point(bytes, read);
  if (code == base::kReplacement || read != bytes.size())
    fail_regex("\\x80 to \\xff that are no bytes of a character");
  return code;
}

char32_t PatternReader::four_digits() {
  const size_t begin = at_;
  const auto code = number(16, 4);
  if (!code || at_ - begin < 4) fail_regex("\\u without four digits");
  return *code;
}

char32_t PatternReader::code_of(char kind) {
  switch (kind) {
    case 't': return '\t';
    case 'n': return '\n';
    case 'v': return '\v';
    case 'f': return '\f';
    case 'r': return '\r';
    case 'a': return 7;
    case 'e': return 27;
    case 'x': return hex_code();
    case 'u': return four_digits();
    case 'o': return skip("{") ? braced(8) : U'o';
    case 'c':
    case 'C':
    case 'M': refuse_regex("\\c, \\C- and \\M-");
    default: break;
  }
  --at_;
  if (is_digit(kind)) {
    if (const auto code = number(8, 3)) return *code;
  }
  return base::next_code_point(in_, at_);  // every other character stands for itself
}

std::optional<PatternReader::Interval> PatternReader::read_interval() {
  const size_t end = in_.find('}', at_);
  if (end == std::string_view::npos || end - at_ > 20) return std::nullopt;
  const std::string_view inside = in_.substr(at_ + 1, end - at_ - 1);
  const size_t comma = std::min(inside.find(','), inside.size());
  const bool is_fixed = comma == inside.size();
  const std::string_view low = inside.substr(0, comma), high = is_fixed ? low : inside.substr(comma + 1);
  const auto is_number = [](std::string_view s) { return std::all_of(s.begin(), s.end(), is_digit); };
  if ((low.empty() && high.empty()) || !is_number(low) || !is_number(high)) return std::nullopt;
  if (low.size() > 5 || high.size() > 5) fail_regex("more than 99999 repetitions");
  if (!low.empty() && !high.empty() && std::stoi(std::string(low)) > std::stoi(std::string(high)))
    refuse_regex("{n,m} with n above m");
  at_ = end;
  if (is_fixed) return Interval{base::concat("{", low, "}"), true};
  return Interval{base::concat("{", low.empty() ? "0" : low, ",", high, "}"), false};
}

}  // namespace trireme::data
