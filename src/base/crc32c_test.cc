// Tests CRC-32C against the vectors of RFC 3720 and a bit-by-bit loop.
#include "base/crc32c.h"

#include <gtest/gtest.h>

#include <string>

namespace trireme::base {
namespace {

/// The definition: polynomial division, one bit at a time.
uint32_t by_bits(std::string_view bytes) {
  uint32_t crc = ~0u;
  for (const char c : bytes) {
    crc ^= static_cast<unsigned char>(c);
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82f63b78u : 0u);
  }
  return ~crc;
}

TEST(Crc32c, PublishedVectors) {
  EXPECT_EQ(crc32c(""), 0u);
  EXPECT_EQ(crc32c("123456789"), 0xe3069283u);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8a9136aau);
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62a8ab43u);
}

TEST(Crc32c, EveryLengthAndSplitEqualsTheDefinition) {
  std::string text;
  for (int i = 0; i < 100; ++i) text += static_cast<char>(i * 37 + 11);
  for (size_t length = 0; length <= text.size(); ++length) {
    const std::string_view whole = std::string_view(text).substr(0, length);
    EXPECT_EQ(crc32c(whole), by_bits(whole)) << length;
    const size_t cut = length / 3;
    EXPECT_EQ(crc32c(whole.substr(cut), crc32c(whole.substr(0, cut))), by_bits(whole)) << length;
  }
}

TEST(Crc32c, MaskIsTfRecords) {
  // RFC vector 0xe3069283 rotated right by 15 plus the constant.
  EXPECT_EQ(masked_crc32c(0xe3069283u), ((0xe3069283u >> 15) | (0xe3069283u << 17)) + 0xa282ead8u);
  EXPECT_EQ(masked_crc32c(0), 0xa282ead8u);
}

}  // namespace
}  // namespace trireme::base
