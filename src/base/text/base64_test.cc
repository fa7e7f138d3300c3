// Base64 there and back.
#include "base/text/base64.h"

#include <gtest/gtest.h>

#include "base/rng.h"

namespace trireme::base {
namespace {

TEST(Base64, KnownTexts) {  // RFC 4648, section 10
  const std::pair<const char*, const char*> known[] = {{"", ""},
                                                       {"f", "Zg=="},
                                                       {"fo", "Zm8="},
                                                       {"foo", "Zm9v"},
                                                       {"foob", "Zm9vYg=="},
                                                       {"fooba", "Zm9vYmE="},
                                                       {"foobar", "Zm9vYmFy"}};
  for (const auto& [bytes, text] : known) {
    EXPECT_EQ(encode_base64(bytes), text);
    EXPECT_EQ(decode_base64(text), bytes);
  }
}

TEST(Base64, ThereAndBack) {
  Rng rng(5);
  for (size_t size = 0; size < 200; ++size) {
    std::string bytes;
    for (size_t i = 0; i < size; ++i) bytes.push_back(static_cast<char>(rng()));
    EXPECT_EQ(decode_base64(encode_base64(bytes)), bytes);
  }
}

}  // namespace
}  // namespace trireme::base
