// unique: values that are not numbers are one value, which comes after all numbers.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "ops/test_eval.h"

namespace trireme::ops {
namespace {

using tensor::Tensor;
using Index = std::vector<int64_t>;

constexpr float kNotANumber = std::numeric_limits<float>::quiet_NaN();

TEST(Unique, KeepsNumbersBesideNaN) {
  const Tensor x = Tensor::from<float>({6}, {kNotANumber, 2, 1, -kNotANumber, 2, INFINITY});
  const std::vector<Tensor> sorted = testing::run("unique", {x}, {}, 4);
  const std::vector<double> y = sorted[0].to_doubles();
  ASSERT_EQ(y.size(), 4u);
  EXPECT_EQ((std::vector<double>(y.begin(), y.end() - 1)), (std::vector<double>{1, 2, INFINITY}));
  EXPECT_TRUE(std::isnan(y[3]));
  EXPECT_EQ(sorted[1].to_ints(), (Index{2, 1, 5, 0}));
  EXPECT_EQ(sorted[2].to_ints(), (Index{3, 1, 0, 3, 1, 2}));
  EXPECT_EQ(sorted[3].to_ints(), (Index{1, 2, 1, 2}));
  const std::vector<Tensor> as_met = testing::run("unique", {x}, {{"sorted", int64_t{0}}}, 4);
  EXPECT_EQ(as_met[1].to_ints(), (Index{0, 1, 2, 5}));
  EXPECT_EQ(as_met[3].to_ints(), (Index{2, 2, 1, 1}));
}

TEST(Unique, KeepsRowsBesideNaN) {
  const Tensor x = Tensor::from<float>({3, 2}, {kNotANumber, 5, 1, 5, 1, 4});
  const std::vector<Tensor> rows = testing::run("unique", {x}, {{"axis", int64_t{0}}}, 4);
  EXPECT_EQ(rows[1].to_ints(), (Index{2, 1, 0}));
  EXPECT_EQ(rows[3].to_ints(), (Index{1, 1, 1}));
}

}  // namespace
}  // namespace trireme::ops
