// Tests rows of outputs as answers: shapes, values, and refusals.
#include "serve/batched/row_answers.h"

#include <gtest/gtest.h>

namespace trireme::serve {
namespace {

using tensor::Tensor;

TEST(RowAnswers, CutsAlongTheFirstDimension) {
  const Tensor all = Tensor::from<int32_t>({3, 2}, {1, 2, 3, 4, 5, 6});
  ASSERT_EQ(answer_count({all, Tensor::zeros(tensor::DType::f32, {3})}, 0), 3);
  const Tensor second = answer_at(all, 0, 1);
  EXPECT_EQ(second.dims(), (tensor::Dims{2}));
  EXPECT_EQ(second.to_ints(), (std::vector<int64_t>{3, 4}));
  EXPECT_EQ(second.raw(), all.raw() + 2 * sizeof(int32_t));
}

TEST(RowAnswers, CutsBehindTheBatch) {
  const Tensor all = Tensor::from<int32_t>({2, 3, 1}, {1, 2, 3, 4, 5, 6});
  ASSERT_EQ(answer_count({all}, 1), 3);
  const Tensor last = answer_at(all, 1, 2);
  EXPECT_EQ(last.dims(), (tensor::Dims{2, 1}));
  EXPECT_EQ(last.to_ints(), (std::vector<int64_t>{3, 6}));
}

TEST(RowAnswers, CountsNoneAndRefusesTooMany) {
  EXPECT_EQ(answer_count({Tensor::zeros(tensor::DType::f32, {0, 4})}, 0), 0);
  EXPECT_THROW(
      answer_count({Tensor::zeros(tensor::DType::f32, {3}), Tensor::zeros(tensor::DType::f32, {2})}, 0),
      base::Error);
  EXPECT_THROW(answer_count({Tensor::zeros(tensor::DType::f32, {3})}, 1), base::Error);
  EXPECT_THROW(answer_count({Tensor::zeros(tensor::DType::u8, {kMostAnswers + 1})}, 0), base::Error);
}

}  // namespace
}  // namespace trireme::serve
