// Quantisation against plain double arithmetic, over layouts, types, sizes, levels and thread counts.
#include "backend/cpu/quant/quantize_linear.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "backend/cpu/simd/simd_level.h"

namespace trireme::cpu {
namespace {

// Multiples of 1/8 in [-40, 40], which give many exact ties with scales that are powers of two.
std::vector<float> eighths(int64_t n) {
  std::vector<float> v(static_cast<size_t>(n));
  uint32_t seed = 11;
  for (float& x : v) {
    seed = seed * 1664525u + 1013904223u;
    x = static_cast<float>(static_cast<int>(seed >> 20) % 641 - 320) / 8.0f;
  }
  return v;
}

class QuantizeAtLevel : public testing::TestWithParam<SimdLevel> {
 protected:
  void SetUp() override { simd_force(GetParam()); }
  void TearDown() override { simd_unforce(); }
  base::ThreadPool pool_{3};
};

TEST_P(QuantizeAtLevel, PerAxisBothWays) {
  for (int64_t outer : {0, 1, 3}) {
    for (int64_t axis : {1, 4}) {
      for (int64_t inner : {1, 7, 16, 33, 9000}) {
        const std::vector<float> x = eighths(outer * axis * inner), scale = {0.25f, 0.5f, 0.125f, 0.3f};
        const std::vector<uint8_t> zero_u8 = {128, 3, 255, 0};
        const std::vector<int8_t> zero_i8 = {0, -7, 127, -128};
        std::vector<uint8_t> u(x.size() + 1, 0xEE);
        std::vector<int8_t> s(x.size());
        std::vector<float> back_u(x.size()), back_s(x.size());
        quantize_linear({x.data(), u.data(), QuantType::u8, scale.data(), zero_u8.data(), outer, axis, inner},
                        pool_);
        quantize_linear({x.data(), s.data(), QuantType::i8, scale.data(), zero_i8.data(), outer, axis, inner},
                        pool_);
        using Type = DequantizeLinear::Type;
        dequantize_linear(
            {u.data(), back_u.data(), Type::u8, scale.data(), zero_u8.data(), outer, axis, inner}, pool_);
        dequantize_linear(
            {s.data(), back_s.data(), Type::i8, scale.data(), zero_i8.data(), outer, axis, inner}, pool_);
        for (size_t i = 0; i < x.size(); ++i) {
          const size_t c = i / static_cast<size_t>(inner) % static_cast<size_t>(axis);
          const double q = std::nearbyint(static_cast<double>(x[i] / scale[c]));
          ASSERT_EQ(u[i], std::clamp(q + zero_u8[c], 0.0, 255.0)) << x[i] << " / " << scale[c];
          ASSERT_EQ(s[i], std::clamp(q + zero_i8[c], -128.0, 127.0)) << x[i] << " / " << scale[c];
          ASSERT_EQ(back_u[i], static_cast<float>(u[i] - zero_u8[c]) * scale[c]);
          ASSERT_EQ(back_s[i], static_cast<float>(s[i] - zero_i8[c]) * scale[c]);
        }
        ASSERT_EQ(u.back(), 0xEE);
      }
    }
  }
}

TEST_P(QuantizeAtLevel, SpecialValues) {
  const std::vector<float> x = {NAN, INFINITY, -INFINITY, 1e30f, -1e30f};
  const float scale = 0.5f;
  const uint8_t zero = 9;
  std::vector<uint8_t> y(20);
  std::vector<float> many;
  for (int i = 0; i < 4; ++i) many.insert(many.end(), x.begin(), x.end());
  quantize_linear({many.data(), y.data(), QuantType::u8, &scale, &zero, 1, 1, 20}, pool_);
  const int want[] = {9, 255, 0, 255, 0};
  for (size_t i = 0; i < 20; ++i) EXPECT_EQ(y[i], want[i % 5]);
  const int32_t wide[] = {2147483647, -2147483647}, zero_wide = -10;
  float back[2];
  dequantize_linear({wide, back, DequantizeLinear::Type::i32, &scale, &zero_wide, 1, 1, 2}, pool_);
  EXPECT_EQ(back[0], static_cast<float>(2147483657.0) * 0.5f);
  EXPECT_EQ(back[1], static_cast<float>(-2147483637.0) * 0.5f);
}

TEST_P(QuantizeAtLevel, Dynamic) {
  const std::vector<float> x = {0.0f, 2.0f, -3.0f, -2.5f, 1.34f, 0.5f};  // ONNX's own example
  std::vector<uint8_t> y(6);
  const QuantParams p = dynamic_quantize(x.data(), y.data(), 6, pool_);
  EXPECT_NEAR(p.scale, 0.0196078438, 1e-9);
  EXPECT_EQ(p.zero_point, 153);
  EXPECT_EQ(y, (std::vector<uint8_t>{153, 255, 0, 26, 221, 179}));
}

INSTANTIATE_TEST_SUITE_P(Levels, QuantizeAtLevel, testing::ValuesIn(simd_levels()),
                         [](const auto& level) { return level.param.name; });

TEST(Quantize, SameBitsForEveryThreadCount) {
  base::ThreadPool one(1), four(4);
  const std::vector<float> x = eighths(300007);
  std::vector<uint8_t> a(x.size()), b(x.size());
  const QuantParams p = dynamic_quantize(x.data(), a.data(), 300007, one);
  const QuantParams q = dynamic_quantize(x.data(), b.data(), 300007, four);
  EXPECT_EQ(p.scale, q.scale);
  EXPECT_EQ(p.zero_point, q.zero_point);
  EXPECT_EQ(a, b);
}

}  // namespace
}  // namespace trireme::cpu
