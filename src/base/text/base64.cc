// Base64: six bits per character (RFC 4648).
#include "base/text/base64.h"

#include <cstdint>

#include "base/error.h"

namespace trireme::base {

std::string decode_base64(std::string_view text) {
  while (text.ends_with('=')) text.remove_suffix(1);
  require(text.size() % 4 != 1, "base64 of ", text.size(), " characters");
  std::string out;
  out.reserve(text.size() / 4 * 3 + 3);
  uint32_t bits = 0;
  int held = 0;
  for (const char c : text) {
    const int value = c >= 'A' && c <= 'Z'   ? c - 'A'
                      : c >= 'a' && c <= 'z' ? c - 'a' + 26
                      : c >= '0' && c <= '9' ? c - '0' + 52
                      : c == '+'             ? 62
                      : c == '/'             ? 63
                                             : -1;
    if (value < 0) fail_invalid("base64: the byte ", static_cast<int>(static_cast<unsigned char>(c)));
    bits = bits << 6 | static_cast<uint32_t>(value);
    held += 6;
    if (held < 8) continue;
    held -= 8;
    out.push_back(static_cast<char>(bits >> held & 0xFF));
  }
  return out;
}

std::string encode_base64(std::string_view bytes) {
  constexpr std::string_view kLetters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  out.reserve((bytes.size() + 2) / 3 * 4);
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t bits = 0;
    for (size_t b = 0; b < 3; ++b)
      bits = bits << 8 | (i + b < bytes.size() ? static_cast<unsigned char>(bytes[i + b]) : 0u);
    for (size_t sextet = 0; sextet < 4; ++sextet)
      out.push_back(i + sextet <= bytes.size() ? kLetters[bits >> (18 - 6 * sextet) & 63] : '=');
  }
  return out;
}

}  // namespace trireme::base
