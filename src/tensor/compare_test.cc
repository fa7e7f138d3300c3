// The distance between tensors: scale floor, NaN, mismatched shapes, large integers.
#include "tensor/compare.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace trireme::tensor {
namespace {

Tensor of(std::initializer_list<float> values) {
  return Tensor::from<float>({static_cast<int64_t>(values.size())}, values);
}

TEST(RelativeError, SmallElementsAreMeasuredAgainstTheScale) {
  EXPECT_NEAR(relative_error(of({100.0f, 0.001f}), of({100.0f, 0.0f})), 0.001, 1e-6);
  EXPECT_NEAR(relative_error(of({101.0f}), of({100.0f})), 0.01, 1e-6);
}

TEST(RelativeError, NanAndShape) {
  const float nan = std::nanf("");
  EXPECT_EQ(relative_error(of({nan, 1.0f}), of({nan, 1.0f})), 0);
  EXPECT_TRUE(std::isinf(relative_error(of({nan}), of({1.0f}))));
  EXPECT_TRUE(std::isinf(relative_error(of({1.0f, 2.0f}), of({1.0f}))));
}

TEST(AbsoluteError, IntegersDifferInIntegers) {
  const auto error = [](auto a, auto b) {
    using T = decltype(a);
    const Tensor x = Tensor::from<T>({1}, {a}), y = Tensor::from<T>({1}, {T(b)});
    EXPECT_GT(relative_error(x, y), 0);
    return absolute_error(x, y);
  };
  EXPECT_EQ(error((int64_t{1} << 60) + 1, int64_t{1} << 60), 1);
  EXPECT_EQ(error(INT64_MIN, INT64_MAX), 0x1p64);
  EXPECT_EQ(error(~uint64_t{0}, ~uint64_t{0} - 2), 2);
  EXPECT_EQ(error(int8_t{-128}, int8_t{127}), 255);
  EXPECT_EQ(error(uint8_t{3}, uint8_t{5}), 2);
  EXPECT_EQ(error(true, false), 1);
  const Tensor same = Tensor::from<int64_t>({2}, {INT64_MIN, INT64_MAX});
  EXPECT_EQ(relative_error(same, same), 0);
}

TEST(Mismatch, SaysWhatNoNumberDoes) {
  const float nan = std::nanf(""), infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(mismatch(of({1, 2}), of({1, 3})), "");
  EXPECT_EQ(mismatch(of({1, nan, infinity}), of({1, nan, infinity})), "");
  EXPECT_EQ(mismatch(of({1, 2}), of({1})), "is f32[2], expected f32[1]");
  EXPECT_EQ(mismatch(of({1}), Tensor::from<double>({1}, {1})), "is f32[1], expected f64[1]");
  EXPECT_EQ(mismatch(of({1, nan}), of({1, 2})), "is nan at element 1, expected 2");
  EXPECT_EQ(mismatch(of({-infinity}), of({infinity})), "is -inf at element 0, expected inf");
  EXPECT_TRUE(std::isinf(relative_error(of({5}), of({infinity}))));
}

}  // namespace
}  // namespace trireme::tensor
