// Joined tensors without memory: their content, filling them, and which tensors are not joined.
#include "tensor/joined.h"

#include <gtest/gtest.h>

namespace trireme::tensor {
namespace {

std::vector<float> floats(const Tensor& t) { return {t.data<float>().begin(), t.data<float>().end()}; }

TEST(Joined, ShowsThePartsSideBySide) {
  const Tensor a = Tensor::from<float>({2, 2}, {1, 2, 3, 4}), b = Tensor::from<float>({2, 1}, {5, 6});
  const Tensor columns = joined_later({a, b}, 1);
  EXPECT_EQ(columns.dims(), (Dims{2, 3}));
  EXPECT_EQ(floats(joined_now(columns)), (std::vector<float>{1, 2, 5, 3, 4, 6}));
  const Tensor rows = joined_later({a, Tensor::from<float>({1, 2}, {7, 8})}, 0);
  EXPECT_EQ(floats(joined_now(rows)), (std::vector<float>{1, 2, 3, 4, 7, 8}));
  fill_joined(columns);
  EXPECT_EQ(floats(columns), (std::vector<float>{1, 2, 5, 3, 4, 6}));
  EXPECT_EQ(floats(joined_now(columns)), floats(columns));
}

TEST(Joined, OthersAreNone) {
  const Tensor a = Tensor::from<float>({2, 2}, {1, 2, 3, 4});
  EXPECT_FALSE(joined_now(a).defined());
  EXPECT_FALSE(joined_now(joined_later({a, a}, 0).rows(0, 1)).defined());
  EXPECT_THROW(fill_joined(a), base::Error);
  EXPECT_THROW(joined_later({a, Tensor::from<float>({3, 1}, {1, 2, 3})}, 1), base::Error);
}

}  // namespace
}  // namespace trireme::tensor
