// The distance between tensors: scale floor, NaN, mismatched shapes.
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

}  // namespace
}  // namespace trireme::tensor
