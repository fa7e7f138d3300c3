// Tests the random numbers against the authors' published values, and the moments of each distribution.
#include "base/rng.h"

#include <gtest/gtest.h>

#include <vector>

namespace trireme::base {
namespace {

TEST(Rng, KnownAnswersOfRandom123) {
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}), (PhiloxBlock{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  const uint32_t ones = 0xffffffff;
  EXPECT_EQ(philox4x32({ones, ones, ones, ones}, {ones, ones}),
            (PhiloxBlock{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (PhiloxBlock{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Rng, StreamsAreApartAndRepeat) {
  Rng a(1, 2), b(1, 2), other_stream(1, 3), other_seed(2, 2);
  int equal_stream = 0, equal_seed = 0;
  for (int i = 0; i < 1000; ++i) {
    const uint32_t word = a();
    ASSERT_EQ(word, b());
    ASSERT_EQ(word, philox_block(1, 2, static_cast<uint64_t>(i) / 4)[static_cast<size_t>(i) % 4]);
    equal_stream += word == other_stream();
    equal_seed += word == other_seed();
  }
  EXPECT_LE(equal_stream, 1);
  EXPECT_LE(equal_seed, 1);
}

TEST(Rng, DistributionsHaveTheirMoments) {
  Rng rng(42);
  constexpr int kCount = 200000;
  double uniform = 0, normal = 0, normal2 = 0, normal4 = 0, exponential = 0, exponential2 = 0;
  std::vector<int> die(6);
  for (int i = 0; i < kCount; ++i) {
    const double u = rng.uniform();
    ASSERT_GE(u, 0);
    ASSERT_LT(u, 1);
    const double n = rng.normal();
    const double e = rng.exponential(3);
    uniform += u, normal += n, normal2 += n * n, normal4 += n * n * n * n, exponential += e,
        exponential2 += e * e;
    ++die[rng.below(6)];
  }
  // Tolerances are five standard errors or more.
  EXPECT_NEAR(uniform / kCount, 0.5, 0.004);
  EXPECT_NEAR(normal / kCount, 0, 0.012);
  EXPECT_NEAR(normal2 / kCount, 1, 0.016);
  EXPECT_NEAR(normal4 / kCount, 3, 0.12);
  EXPECT_NEAR(exponential / kCount, 3, 0.035);
  EXPECT_NEAR(exponential2 / kCount, 18, 0.5);
  for (const int n : die) EXPECT_NEAR(n, kCount / 6.0, 900);
  EXPECT_EQ(uniform_f32(0xffffffff), 1 - 0x1p-24f);
}

}  // namespace
}  // namespace trireme::base
