// The response cache: the hash's published values, what makes keys differ, and what is let go first.
#include "serve/response_cache.h"

#include <gtest/gtest.h>

#include <set>

namespace trireme::serve {
namespace {

using tensor::DType;
using tensor::Tensor;

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

TEST(ResponseCache, TellsApartWhatDiffersInAnything) {
  const ResponseCache cache(1 << 20);
  const Tensor a = Tensor::from<int32_t>({4}, {1, 2, 3, 4});
  std::set<ResponseCache::Key> keys;
  keys.insert(cache.key_of(1, {a}));
  keys.insert(cache.key_of(2, {a}));                                                        // another load
  keys.insert(cache.key_of(1, {a.reshaped({2, 2})}));                                       // shape
  keys.insert(cache.key_of(1, {a, a}));                                                     // number
  keys.insert(cache.key_of(1, {Tensor::from<int32_t>({4}, {1, 2, 3, 5})}));                 // bytes
  keys.insert(cache.key_of(1, {Tensor::view(DType::u32, {4}, {a.raw(), 16}, a.owner())}));  // type
  keys.insert(cache.key_of(1, {Tensor::from<int32_t>({2}, {1, 2}), Tensor::from<int32_t>({2}, {3, 4})}));
  EXPECT_EQ(keys.size(), 7u);
  EXPECT_EQ(cache.key_of(1, {a}), cache.key_of(1, {a.clone()}));
  EXPECT_NE(cache.key_of(1, {a}), ResponseCache(1 << 20).key_of(1, {a}));  // keyed at random
}

TEST(ResponseCache, LetsGoWhatWasUsedLongestAgo) {
  ResponseCache cache(3 * (128 + 4000));
  const Tensor big = Tensor::zeros(DType::f32, {1000});
  for (uint64_t i = 0; i < 3; ++i) cache.insert({i, 0}, {big}, i % 2);
  EXPECT_TRUE(cache.find({0, 0}).has_value());
  cache.insert({3, 0}, {big}, 1);
  EXPECT_FALSE(cache.find({1, 0}).has_value());
  EXPECT_TRUE(cache.find({0, 0}) && cache.find({2, 0}) && cache.find({3, 0}));
  EXPECT_LE(cache.bytes(), 3u * 4128);
  cache.insert({9, 0}, {Tensor::zeros(DType::f32, {100'000})}, 2);
  EXPECT_FALSE(cache.find({9, 0}).has_value());
  EXPECT_TRUE(cache.find({3, 0}).has_value());
  cache.forget(0);
  EXPECT_EQ(cache.bytes(), 4128u);
  EXPECT_FALSE(cache.find({0, 0}) || cache.find({2, 0}));
  EXPECT_TRUE(cache.find({3, 0}).has_value());
  cache.forget(1);
  EXPECT_EQ(cache.bytes(), 0u);
}

}  // namespace
}  // namespace trireme::serve
