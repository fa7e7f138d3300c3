// Classes of characters from utf8proc's tables, collected once, and GPT-2's byte alphabet.
#include "data/tokenizer/characters.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "base/utf8.h"

namespace trireme::data {
namespace {

bool is_space_code(char32_t c) {
  return (c >= 9 && c <= 13) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

/// Symbols that Unicode counts as alphabetic: letters in circles, brackets and squares.
bool is_letter_symbol(char32_t c) {
  return (c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) || (c >= 0x1F150 && c <= 0x1F169) ||
         (c >= 0x1F170 && c <= 0x1F189);
}

/// They join letters, or keep them apart, within a word.
bool is_joiner(char32_t c) { return c == 0x200C || c == 0x200D; }

uint8_t find_classes(char32_t code) {
  const utf8proc_category_t c = utf8proc_category(static_cast<utf8proc_int32_t>(code));
  const bool is_letter = c >= UTF8PROC_CATEGORY_LU && c <= UTF8PROC_CATEGORY_LO;
  const bool is_mark = c >= UTF8PROC_CATEGORY_MN && c <= UTF8PROC_CATEGORY_ME;
  const bool is_number = c >= UTF8PROC_CATEGORY_ND && c <= UTF8PROC_CATEGORY_NO;
  const bool is_space = is_space_code(code);
  const bool is_symbol = code < 128 && c >= UTF8PROC_CATEGORY_SM && c <= UTF8PROC_CATEGORY_SO;
  int bits = (is_letter ? kLetter : 0) | (is_number ? kNumber : 0) | (is_space ? kSpace : 0);
  if (bits == 0) bits = kOther;
  if ((c >= UTF8PROC_CATEGORY_PC && c <= UTF8PROC_CATEGORY_PO) || is_symbol) bits |= kPunctuation;
  if (is_mark) bits |= kMark;
  const bool is_word = is_letter || is_mark || c == UTF8PROC_CATEGORY_ND || c == UTF8PROC_CATEGORY_NL ||
                       c == UTF8PROC_CATEGORY_PC || is_letter_symbol(code) || is_joiner(code);
  if (is_word) bits |= kWordCharacter;
  return static_cast<uint8_t>(bits);
}

// Planes 0 and 1 hold nearly all text.
constexpr char32_t kTableSize = 0x20000;

std::array<char32_t, 256> byte_alphabet() {
  std::array<char32_t, 256> letters{};
  char32_t next = 256;
  for (size_t byte = 0; byte < 256; ++byte) {
    const bool is_shown = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
    letters[byte] = is_shown ? static_cast<char32_t>(byte) : next++;
  }
  return letters;
}

}  // namespace

uint8_t character_classes(char32_t code) {
  static const std::vector<uint8_t> kTable = [] {
    std::vector<uint8_t> table(kTableSize);
    for (char32_t c = 0; c < kTableSize; ++c) table[c] = find_classes(c);
    return table;
  }();
  return code < kTableSize ? kTable[code] : find_classes(code);
}

bool is_ascii(std::string_view text) {
  uint64_t all = 0;
  size_t at = 0;
  for (; at + 8 <= text.size(); at += 8) {
    uint64_t part;
    std::memcpy(&part, text.data() + at, 8);
    all |= part;
  }
  for (; at < text.size(); ++at) all |= static_cast<uint8_t>(text[at]);
  return (all & 0x8080808080808080u) == 0;
}

std::string well_formed(std::string_view bytes) {
  std::string out;
  for (size_t pos = 0; pos < bytes.size();) base::append_utf8(out, base::next_code_point(bytes, pos));
  return out;
}

size_t whole_prefix(std::string_view text) {
  for (size_t back = 1; back <= std::min<size_t>(3, text.size()); ++back) {
    const auto byte = static_cast<uint8_t>(text[text.size() - back]);
    if ((byte & 0xC0) == 0x80) continue;
    const size_t length = byte >= 0xF0 ? 4 : byte >= 0xE0 ? 3 : byte >= 0xC0 ? 2 : 1;
    return length > back ? text.size() - back : text.size();
  }
  return text.size();
}

size_t previous_character(std::string_view text, size_t end) {
  size_t at = end - 1;
  while (at > 0 && end - at < 4 && (static_cast<uint8_t>(text[at]) & 0xC0) == 0x80) --at;
  return at;
}

size_t skip_space_left(std::string_view text, size_t begin, size_t end) {
  while (end > begin) {
    const size_t start = previous_character(text, end);
    size_t at = start;
    if (!is_white_space(base::next_code_point(text, at))) break;
    end = start;
  }
  return std::max(begin, end);
}

size_t skip_space_right(std::string_view text, size_t begin) {
  while (begin < text.size()) {
    size_t next = begin;
    if (!is_white_space(base::next_code_point(text, next))) break;
    begin = next;
  }
  return begin;
}

void check_growth(size_t before_bytes, size_t now_bytes) {
  // The longest that Unicode's normal forms make of a character is 11 times its bytes.
  constexpr size_t kFixedBytes = size_t{64} << 10, kTimes = 16;
  if (now_bytes > kFixedBytes + kTimes * before_bytes)
    base::fail(base::ErrorCode::exhausted, "tokenizer: its rules make more than ", kTimes,
               " bytes of each of ", before_bytes);
}

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  size_t found = from.empty() ? std::string::npos : text.find(from);
  if (found == std::string::npos) return;
  std::string out;
  size_t begin = 0;
  for (; found != std::string::npos; found = text.find(from, begin)) {
    check_growth(text.size(), out.size() + found - begin + to.size());
    out.append(text, begin, found - begin).append(to);
    begin = found + from.size();
  }
  text = std::move(out.append(text, begin));
}

std::string to_alphabet(std::string_view bytes) {
  static const std::array<char32_t, 256> kLetters = byte_alphabet();
  std::string out;
  for (const char byte : bytes) base::append_utf8(out, kLetters[static_cast<uint8_t>(byte)]);
  return out;
}

std::string from_alphabet(std::string_view text) {
  // All letters of the alphabet are below U+0144.
  static const std::array<int16_t, 512> kBytes = [] {
    std::array<int16_t, 512> map;
    map.fill(-1);
    const auto letters = byte_alphabet();
    for (size_t byte = 0; byte < 256; ++byte) map[letters[byte]] = static_cast<int16_t>(byte);
    return map;
  }();
  std::string out;
  for (size_t pos = 0; pos < text.size();) {
    const char32_t code = base::next_code_point(text, pos);
    if (code >= kBytes.size() || kBytes[code] < 0) return std::string(text);
    out.push_back(static_cast<char>(kBytes[code]));
  }
  return out;
}

int byte_of_name(std::string_view token) {
  const auto digit = [](char c) {
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                  : -1;
  };
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return -1;
  const int high = digit(token[3]), low = digit(token[4]);
  return high < 0 || low < 0 ? -1 : high * 16 + low;
}

std::string name_of_byte(uint8_t byte) {
  constexpr std::string_view kDigits = "0123456789ABCDEF";
  return {'<', '0', 'x', kDigits[byte >> 4], kDigits[byte & 15], '>'};
}

}  // namespace trireme::data
