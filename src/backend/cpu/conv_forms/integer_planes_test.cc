// Convolutions of small groups over planes of bytes against naive sums, at every level of vectors.
#include "backend/cpu/conv_forms/integer_planes.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "backend/cpu/simd/simd_level.h"

namespace trireme::cpu {
namespace {

std::vector<uint8_t> some_bytes(int64_t n, uint32_t seed) {
  std::mt19937 engine(seed);
  std::vector<uint8_t> bytes(static_cast<size_t>(n));
  for (uint8_t& b : bytes) b = static_cast<uint8_t>(engine());
  return bytes;
}

int64_t plain_sum(const IntegerPlanes& a, int64_t n, int64_t o, int64_t oh, int64_t ow) {
  const ConvShape& s = a.shape;
  const int64_t each = s.c / s.groups, first = o / (s.oc / s.groups) * each;
  const auto* x = static_cast<const uint8_t*>(a.x);
  const auto* w = static_cast<const int8_t*>(a.w);
  int64_t sum = 0;
  for (int64_t c = 0; c < each; ++c) {
    for (int64_t i = 0; i < s.kh; ++i) {
      for (int64_t j = 0; j < s.kw; ++j) {
        const int64_t ih = oh * s.stride_h - s.pad_top + i * s.dilation_h;
        const int64_t iw = ow * s.stride_w - s.pad_left + j * s.dilation_w;
        if (ih < 0 || ih >= s.h || iw < 0 || iw >= s.w) continue;
        const int64_t weight = w[((o * each + c) * s.kh + i) * s.kw + j];
        sum += (x[((n * s.c + first + c) * s.h + ih) * s.w + iw] - a.input.zero) * weight;
      }
    }
  }
  return sum;
}

void expect_plain_sums(const ConvShape& s) {
  ASSERT_TRUE(integer_planes_fits(s));
  base::ThreadPool pool(2);
  const std::vector<uint8_t> x = some_bytes(s.n * s.c * s.h * s.w, 1);
  const std::vector<uint8_t> w = some_bytes(s.oc * (s.c / s.groups) * s.kh * s.kw, 2);
  std::vector<int32_t> y(static_cast<size_t>(s.n * s.oc * s.out_h() * s.out_w()));
  std::vector<char> workspace(integer_planes_workspace_bytes(s, 2), '\xff');
  const IntegerPlanes call{.shape = s, .x = x.data(), .input = {false, 93}, .w = w.data(), .y = y.data()};
  integer_planes(call, workspace.data(), pool);
  size_t at = 0;
  for (int64_t n = 0; n < s.n; ++n) {
    for (int64_t o = 0; o < s.oc; ++o) {
      for (int64_t h = 0; h < s.out_h(); ++h) {
        for (int64_t v = 0; v < s.out_w(); ++v, ++at) ASSERT_EQ(y[at], plain_sum(call, n, o, h, v)) << at;
      }
    }
  }
}

/// Copies would be out of proportion to the image.
TEST(IntegerPlanes, LinesFarBeyondTheImageAreNotCopied) {
  const ConvShape s{.h = 3, .w = 3, .c = 2, .oc = 2, .kh = 2, .kw = 2, .groups = 2};
  ConvShape strided = s, dilated = s;
  strided.stride_w = 1 << 20;
  dilated.dilation_h = 1 << 20;
  dilated.pad_top = dilated.pad_bottom = 1 << 19;
  EXPECT_TRUE(integer_planes_fits(s));
  EXPECT_FALSE(integer_planes_fits(strided));
  EXPECT_FALSE(integer_planes_fits(dilated));
}

class IntegerPlanesAtLevel : public testing::TestWithParam<SimdLevel> {
 protected:
  void SetUp() override { simd_force(GetParam()); }
  void TearDown() override { simd_unforce(); }
};

TEST_P(IntegerPlanesAtLevel, SumsAreExact) {
  for (int64_t width : {1, 7, 16, 40, 131}) {
    ConvShape s{.n = 2, .h = 70, .w = width, .c = 6, .oc = 9, .kh = 3, .kw = 3, .groups = 3};
    s.pad_top = s.pad_left = s.pad_right = 1;
    expect_plain_sums(s);
    s.stride_h = s.stride_w = 2;
    s.dilation_h = s.dilation_w = 3;
    s.pad_left = 4, s.pad_right = 5;
    expect_plain_sums(s);
    s.stride_w = 3, s.dilation_w = 1;
    expect_plain_sums(s);
  }
}

INSTANTIATE_TEST_SUITE_P(Levels, IntegerPlanesAtLevel, testing::ValuesIn(simd_levels()),
                         [](const auto& level) { return level.param.name; });

}  // namespace
}  // namespace trireme::cpu
