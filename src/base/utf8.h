// UTF-8 in and out, one code point at a time; bytes that are not UTF-8 read as U+FFFD, never as an error.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace trireme::base {

constexpr char32_t kReplacement = 0xFFFD;

/// Reads the code point at `pos` and moves `pos` past it (pos < text.size()). An ill-formed sequence yields
/// U+FFFD and consumes its longest valid prefix, at least one byte: the rule of WHATWG, Python's "replace"
/// and Rust's lossy.
inline char32_t next_code_point(std::string_view text, size_t& pos) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t first = byte(pos++);
  if (first < 0x80) return first;
  const int tail = first >= 0xC2 && first <= 0xDF   ? 1
                   : (first & 0xF0) == 0xE0         ? 2
                   : first >= 0xF0 && first <= 0xF4 ? 3
                                                    : 0;
  if (tail == 0) return kReplacement;
  // The second byte's range excludes overlong forms, surrogates and code points above U+10FFFF.
  uint8_t low = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
  uint8_t high = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
  char32_t code = first & (0x3F >> tail);
  for (int i = 0; i < tail; ++i) {
    if (pos >= text.size() || byte(pos) < low || byte(pos) > high) return kReplacement;
    code = code << 6 | (byte(pos++) & 0x3F);
    low = 0x80;
    high = 0xBF;
  }
  return code;
}

/// Appends `code` as UTF-8; surrogates and values above U+10FFFF become U+FFFD.
inline void append_utf8(std::string& out, char32_t code) {
  if (code > 0x10FFFF || (code >= 0xD800 && code <= 0xDFFF)) code = kReplacement;
  if (code < 0x80) {
    out.push_back(static_cast<char>(code));
    return;
  }
  const int tail = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
  const uint32_t lead = tail == 1 ? 0xC0 : tail == 2 ? 0xE0 : 0xF0;
  out.push_back(static_cast<char>(lead | code >> (6 * tail)));
  for (int i = tail - 1; i >= 0; --i) out.push_back(static_cast<char>(0x80 | (code >> (6 * i) & 0x3F)));
}

/// True if the whole text is well-formed UTF-8.
inline bool is_utf8(std::string_view text) {
  for (size_t pos = 0; pos < text.size();) {
    const size_t start = pos;
    // A genuine U+FFFD is the three bytes EF BF BD; anything else that reads as U+FFFD was ill-formed.
    if (next_code_point(text, pos) == kReplacement && text.substr(start, pos - start) != "\xEF\xBF\xBD")
      return false;
  }
  return true;
}

}  // namespace trireme::base
