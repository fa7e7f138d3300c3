// Tests the keyed hash against its published values, with the message split into pieces in various ways.
#include "base/keyed_hash.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

namespace trireme::base {
namespace {

/// Key 00 01 ... 0f, messages 00 01 ...: the first vectors of the reference implementation's 128-bit table.
TEST(KeyedHash, IsSipHash128) {
  const std::array<uint64_t, 2> key{0x0706050403020100ull, 0x0f0e0d0c0b0a0908ull};
  KeyedHash none(key);
  EXPECT_EQ(none.finish(), (std::array<uint64_t, 2>{0xe6a825ba047f81a3ull, 0x930255c71472f66dull}));
  KeyedHash one(key);
  one.add("\0", 1);
  EXPECT_EQ(one.finish(), (std::array<uint64_t, 2>{0x44af996bd8c187daull, 0x45fc229b11597634ull}));
}

TEST(KeyedHash, DoesNotDependOnHowTheBytesCome) {
  const std::array<uint64_t, 2> key{1, 2};
  std::string text(100, 'x');
  for (size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(i * 7);
  KeyedHash whole(key);
  whole.add(text.data(), text.size());
  const auto wanted = whole.finish();
  for (size_t step : {1u, 3u, 8u, 13u}) {
    KeyedHash parts(key);
    for (size_t at = 0; at < text.size(); at += step)
      parts.add(text.data() + at, std::min(step, text.size() - at));
    EXPECT_EQ(parts.finish(), wanted) << step;
  }
}

}  // namespace
}  // namespace trireme::base
