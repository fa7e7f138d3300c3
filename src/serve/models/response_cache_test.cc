// Tests the response cache: what makes keys differ, and which entries are evicted first.
#include "serve/models/response_cache.h"

#include <gtest/gtest.h>

#include <set>

namespace trireme::serve {
namespace {

using tensor::DType;
using tensor::Tensor;

TEST(ResponseCache, TellsApartWhatDiffersInAnything) {
  const ResponseCache cache(1 << 20);
  const Tensor a = Tensor::from<int32_t>({4}, {1, 2, 3, 4});
  std::set<ResponseCache::Key> keys;
  keys.insert(cache.key_of(1, {a}));
  keys.insert(cache.key_of(2, {a}));                                         // another load
  keys.insert(cache.key_of(1, {a}, {}, "tenant"));                           // another tenant's
  keys.insert(cache.key_of(1, {a.reshaped({2, 2})}));                        // shape
  keys.insert(cache.key_of(1, {a, a}));                                      // number
  keys.insert(cache.key_of(1, {Tensor::from<int32_t>({4}, {1, 2, 3, 5})}));  // bytes
  keys.insert(cache.key_of(1, {Tensor::view(DType::u32, {4}, {a.raw(), 16}, a.owner())}));  // type
  keys.insert(cache.key_of(1, {Tensor::from<int32_t>({2}, {1, 2}), Tensor::from<int32_t>({2}, {3, 4})}));
  EXPECT_EQ(keys.size(), 8u);
  EXPECT_EQ(cache.key_of(1, {a}), cache.key_of(1, {a.clone()}));
  EXPECT_NE(cache.key_of(1, {a}), ResponseCache(1 << 20).key_of(1, {a}));  // each cache has a random key
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
