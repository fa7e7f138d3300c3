// Casts against an independent search for the nearest value, over all pairs of types, levels and thread
// counts.
#include "backend/cpu/elementwise/cast_types.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "backend/cpu/elementwise/cast_float8.h"
#include "backend/cpu/simd/simd_level.h"
#include "base/error.h"

namespace trireme::cpu {
namespace {

using tensor::DType;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct FloatLayout {
  int exponent, mantissa, bias;
};

// Value of a code by the definition of its format; `top` says how many of the largest codes are not finite
// (IEEE: a whole binade).
double value_of(int code, const FloatLayout& l) {
  const int e = code >> l.mantissa, m = code & ((1 << l.mantissa) - 1);
  const double fraction = static_cast<double>(m) / (1 << l.mantissa);
  return e == 0 ? fraction * std::pow(2.0, 1 - l.bias) : (1 + fraction) * std::pow(2.0, e - l.bias);
}

// The code among [0, last] nearest to |x|, where ties go to the even code; last + 1 if |x| lies beyond the
// tie above the last.
int nearest_code(double x, const FloatLayout& l, int last) {
  int lo = 0, hi = last + 1;  // value_of(last + 1) is the next grid point, representable or not
  while (hi - lo > 1) {
    const int mid = (lo + hi) / 2;
    (value_of(mid, l) <= x ? lo : hi) = mid;
  }
  const double below = x - value_of(lo, l), above = value_of(hi, l) - x;
  if (below == above) return lo % 2 == 0 ? lo : hi;
  return below < above ? lo : hi;
}

std::vector<float> interesting() {
  std::vector<float> v = {0.0f,      -0.0f,    1.0f,     -1.0f,    0.5f,          65504.0f,      65520.0f,
                          65519.99f, 448.0f,   464.0f,   465.0f,   240.0f,        248.0f,        249.0f,
                          57344.0f,  61440.0f, 61441.0f, 1e-8f,    5.9604645e-8f, 2.9802322e-8f, 1e30f,
                          -1e30f,    3.4e38f,  1e-40f,   INFINITY, -INFINITY};
  uint32_t seed = 5;
  for (int i = 0; i < 20000; ++i) {
    seed = seed * 1664525u + 1013904223u;
    // Exponents near those of the small formats; half of the mantissas have many trailing zeros.
    const uint32_t mantissa = (seed >> 3) & (i % 2 ? 0x7FFFFFu : 0x7F0000u);
    const uint32_t exponent = 100 + (seed >> 26) % 48;
    v.push_back(std::bit_cast<float>((seed & 0x80000000u) | (exponent << 23) | mantissa));
  }
  return v;
}

TEST(Float8, EncodeIsTheNearestCodeAndDecodeItsValue) {
  struct Format {
    Float8 f;
    FloatLayout layout;
    int last;
    bool fnuz, infinity;
  };
  const Format formats[] = {{Float8::e4m3fn, {4, 3, 7}, 0x7E, false, false},
                            {Float8::e4m3fnuz, {4, 3, 8}, 0x7F, true, false},
                            {Float8::e5m2, {5, 2, 15}, 0x7B, false, true},
                            {Float8::e5m2fnuz, {5, 2, 16}, 0x7F, true, false}};
  for (const Format& f : formats) {
    for (int code = 0; code <= f.last; ++code) {
      EXPECT_EQ(float8_decode(f.f, static_cast<uint8_t>(code)), value_of(code, f.layout));
      if (code == 0) continue;
      EXPECT_EQ(float8_decode(f.f, static_cast<uint8_t>(code | 0x80)), -value_of(code, f.layout));
    }
    for (float x : interesting()) {
      for (bool saturate : {false, true}) {
        const int sign = std::signbit(x) ? 0x80 : 0;
        int want = nearest_code(std::min(std::abs(static_cast<double>(x)), 1e9), f.layout, f.last);
        if (want > f.last)
          want = saturate ? f.last | sign : f.infinity ? 0x7C | sign : f.fnuz ? 0x80 : 0x7F | sign;
        else if (want != 0 || !f.fnuz)
          want |= sign;
        ASSERT_EQ(float8_encode(f.f, x, saturate), want) << x << " saturate " << saturate;
      }
    }
    EXPECT_TRUE(std::isnan(float8_decode(f.f, float8_encode(f.f, NAN, true))));
  }
  EXPECT_EQ(float8_decode(Float8::e5m2, 0xFC), -INFINITY);
}

class CastAtLevel : public testing::TestWithParam<SimdLevel> {
 protected:
  void SetUp() override { simd_force(GetParam()); }
  void TearDown() override { simd_unforce(); }
  base::ThreadPool pool_{3};
};

TEST_P(CastAtLevel, HalvesRoundToNearestEven) {
  const std::vector<float> x = interesting();
  const int64_t n = static_cast<int64_t>(x.size());
  const std::vector<double> wide(x.begin(), x.end());
  for (DType to : {DType::f16, DType::bf16}) {
    const FloatLayout layout = to == DType::f16 ? FloatLayout{5, 10, 15} : FloatLayout{8, 7, 127};
    const int infinity = to == DType::f16 ? 0x7C00 : 0x7F80;
    std::vector<uint16_t> y(x.size()), z(x.size());
    cast({x.data(), DType::f32, y.data(), to, n}, pool_);
    cast({wide.data(), DType::f64, z.data(), to, n}, pool_);
    std::vector<float> back(x.size());
    cast({y.data(), to, back.data(), DType::f32, n}, pool_);
    for (size_t i = 0; i < x.size(); ++i) {
      const int sign = std::signbit(x[i]) ? 0x8000 : 0;
      const int want = std::isinf(x[i])
                           ? infinity
                           : nearest_code(std::abs(static_cast<double>(x[i])), layout, infinity - 1);
      ASSERT_EQ(y[i], want | sign) << x[i];
      ASSERT_EQ(z[i], want | sign) << x[i];
      ASSERT_EQ(back[i], (sign ? -1 : 1) * (want == infinity ? kInfinity : value_of(want, layout)));
    }
  }
}

TEST_P(CastAtLevel, OddSizesAndNan) {
  for (int64_t n : {0, 1, 7, 16, 17, 513}) {
    const std::vector<float> x(static_cast<size_t>(n), NAN);
    std::vector<uint16_t> y(static_cast<size_t>(n + 1), 0xEEEE);
    std::vector<float> z(static_cast<size_t>(n));
    for (DType to : {DType::f16, DType::bf16}) {
      cast({x.data(), DType::f32, y.data(), to, n}, pool_);
      cast({y.data(), to, z.data(), DType::f32, n}, pool_);
      for (float v : z) ASSERT_TRUE(std::isnan(v));
      ASSERT_EQ(y.back(), 0xEEEE);
    }
  }
}

template <class T>
double clamped(double x) {
  using Limits = std::numeric_limits<T>;
  if (std::isnan(x)) return 0;
  const double low = static_cast<double>(Limits::min()), high = static_cast<double>(Limits::max());
  return std::min(std::max(std::trunc(x), low), high);
}

// Limits of the types, their neighbours, NaN and infinities among ordinary values, in floats of 32 and 16
// bits.
TEST_P(CastAtLevel, WholeNumbersAreTruncatedAndClamped) {
  std::vector<float> x = interesting();
  for (const float limit : {127.0f, 128.0f, 255.0f, 256.0f, 32768.0f, 65535.0f, 0x1p31f, 0x1p63f}) {
    for (const float v :
         {limit, std::nextafterf(limit, 0.0f), std::nextafterf(limit, kInfinity), limit - 0.5f}) {
      x.insert(x.end(), {v, -v});
    }
  }
  x.insert(x.end(), {NAN, 0.9f, -0.9f});
  const int64_t n = static_cast<int64_t>(x.size());
  for (const DType from : {DType::f32, DType::f16, DType::bf16}) {
    std::vector<float> narrow(x.size()), exact(x.size());
    cast({x.data(), DType::f32, narrow.data(), from, n}, pool_);
    cast({narrow.data(), from, exact.data(), DType::f32, n}, pool_);
    const auto check = [&](auto zero) {
      using T = decltype(zero);
      std::vector<T> y(x.size());
      cast({narrow.data(), from, y.data(), tensor::dtype_of<T>(), n}, pool_);
      for (size_t i = 0; i < y.size(); ++i) {
        // The largest i64 is not a double, so both sides are compared as doubles.
        ASSERT_EQ(static_cast<double>(y[i]), clamped<T>(static_cast<double>(exact[i]))) << exact[i];
      }
    };
    check(int8_t{}), check(uint8_t{}), check(int16_t{}), check(uint16_t{}), check(int32_t{}),
        check(int64_t{});
    std::vector<uint8_t> truth(x.size());
    cast({narrow.data(), from, truth.data(), DType::boolean, n}, pool_);
    for (size_t i = 0; i < truth.size(); ++i) ASSERT_EQ(truth[i], exact[i] == 0 ? 0 : 1) << exact[i];
  }
}

INSTANTIATE_TEST_SUITE_P(Levels, CastAtLevel, testing::ValuesIn(simd_levels()),
                         [](const auto& level) { return level.param.name; });

template <class From, class To>
To cast_one(From x) {
  base::ThreadPool pool(1);
  To y{};
  cast({&x, tensor::dtype_of<From>(), &y, tensor::dtype_of<To>(), 1}, pool);
  return y;
}

TEST(Cast, FloatToIntegerTruncatesAndClamps) {
  EXPECT_EQ((cast_one<float, int32_t>(-2.9f)), -2);
  EXPECT_EQ((cast_one<float, int8_t>(300.0f)), 127);
  EXPECT_EQ((cast_one<float, uint8_t>(-5.0f)), 0);
  EXPECT_EQ((cast_one<double, int64_t>(1e30)), std::numeric_limits<int64_t>::max());
  EXPECT_EQ((cast_one<double, uint64_t>(18446744073709549568.0)), 18446744073709549568ull);
  EXPECT_EQ((cast_one<float, int32_t>(NAN)), 0);
  EXPECT_EQ((cast_one<float, bool>(0.25f)), true);
  EXPECT_EQ((cast_one<float, bool>(-0.0f)), false);
  EXPECT_EQ((cast_one<float, bool>(NAN)), true);
}

TEST(Cast, IntegersKeepLowBitsAndConvertExactly) {
  EXPECT_EQ((cast_one<int32_t, int8_t>(300)), 44);
  EXPECT_EQ((cast_one<int32_t, uint8_t>(-1)), 255);
  EXPECT_EQ((cast_one<int64_t, int32_t>(0x1234567890)), 0x34567890);
  EXPECT_EQ((cast_one<uint64_t, float>(0xFFFFFFFFFFFFFFFFull)), 18446744073709551616.0f);
  EXPECT_EQ((cast_one<uint64_t, double>(0x8000000000000000ull)), 9223372036854775808.0);
  EXPECT_EQ((cast_one<int64_t, float>((1ll << 24) + 1)), 16777216.0f);
  EXPECT_EQ((cast_one<int64_t, float>((1ll << 62) + (1ll << 38) + 1)), 4611686568183201792.0f);
  EXPECT_EQ((cast_one<int32_t, float>(-7)), -7.0f);
  EXPECT_EQ((cast_one<bool, float>(true)), 1.0f);
  EXPECT_EQ((cast_one<uint8_t, int64_t>(200)), 200);
  // One more than a bf16 tie: 2^62 + 2^54 is halfway between neighbours, so the next integer must round up.
  const tensor::BFloat16 up = cast_one<int64_t, tensor::BFloat16>((1ll << 62) + (1ll << 54) + 1);
  EXPECT_EQ(static_cast<float>(up), static_cast<float>((1ll << 62) + (1ll << 55)));
  // A double just above an f16 tie, which an f32 cannot distinguish from the tie.
  const tensor::Half half = cast_one<double, tensor::Half>(1.0 + 1.0 / 2048 + 1e-12);
  EXPECT_EQ(static_cast<float>(half), 1.0f + 1.0f / 1024);
}

TEST(Cast, EveryPairCarriesSmallIntegers) {
  const DType types[] = {DType::f32,      DType::f64,        DType::f16,    DType::bf16,
                         DType::i8,       DType::u8,         DType::i16,    DType::u16,
                         DType::i32,      DType::u32,        DType::i64,    DType::u64,
                         DType::f8e4m3fn, DType::f8e4m3fnuz, DType::f8e5m2, DType::f8e5m2fnuz};
  base::ThreadPool one(1), four(4);
  const int64_t n = 20001;
  std::vector<float> x(static_cast<size_t>(n)), back(x.size());
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 5);
  for (DType a : types) {
    for (DType b : types) {
      std::vector<uint64_t> first(x.size()), second(x.size()), again(x.size());
      cast({x.data(), DType::f32, first.data(), a, n}, four);
      cast({first.data(), a, second.data(), b, n}, four);
      cast({first.data(), a, again.data(), b, n}, one);
      ASSERT_EQ(second, again);
      cast({second.data(), b, back.data(), DType::f32, n}, four);
      ASSERT_EQ(x, back) << tensor::name_of(a) << " to " << tensor::name_of(b);
    }
  }
  EXPECT_THROW(cast({x.data(), DType::f32, back.data(), DType::i4, 2}, one), base::Error);
}

}  // namespace
}  // namespace trireme::cpu
