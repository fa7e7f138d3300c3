// Tests Base64 against the vectors of RFC 4648 and against invalid text.
#include "base/text/base64.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "base/rng.h"

namespace trireme::base {
namespace {

TEST(Base64, DecodesTheVectorsOfTheStandard) {
  const char* pairs[][2] = {{"", ""},
                            {"Zg==", "f"},
                            {"Zm8=", "fo"},
                            {"Zm9v", "foo"},
                            {"Zm9vYg==", "foob"},
                            {"Zm9vYmE=", "fooba"},
                            {"Zm9vYmFy", "foobar"},
                            {"Zm9vYg", "foob"}};
  for (const auto& [text, bytes] : pairs) {
    EXPECT_EQ(decode_base64(text), bytes) << text;
    if (std::string_view(text).size() % 4 == 0) {
      EXPECT_EQ(encode_base64(bytes), text);
    }
  }
  EXPECT_EQ(decode_base64("/+8="), "\xFF\xEF");
}

TEST(Base64, RefusesOtherText) {
  for (const char* text : {"Zg==Zg==", "Z", "Zm9v\n", "Zm-v", "=a"})
    EXPECT_THROW(decode_base64(text), Error) << text;
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
