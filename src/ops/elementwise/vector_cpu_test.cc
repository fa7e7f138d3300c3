// Rows with vector code have a vector kernel and may be steps of fused_elementwise.
#include <gtest/gtest.h>

#include "ops/elementwise/fused.h"
#include "ops/test_eval.h"

namespace trireme::ops {
namespace {

TEST(Vector, RowsWithVectorCodeHaveAKernelOfIt) {
  size_t rows_with_code = 0;
  for (const auto* rows : {&unary_rows(), &unary_grad_rows(), &binary_rows(), &variadic_rows()}) {
    for (const ElementwiseRow& row : *rows) {
      const size_t operands = row.divides ? 0 : vector_operands(row.function);
      if (operands == 0) continue;
      ++rows_with_code;
      EXPECT_EQ(operands, rows == &unary_rows() ? 1u : 2u) << row.name;
      EXPECT_GT(testing::cpu_kernel_count(table().need(row.name)), 1u) << row.name;
    }
  }
  EXPECT_GE(rows_with_code, 55u);
}

TEST(Vector, StepsOfOperatorsWithOtherNamesHaveCode) {
  for (const char* step : {"gelu", "gelu_tanh", "clip", "pow_scalar"}) EXPECT_EQ(vector_operands(step), 1u);
  for (const char* step : {"gelu_grad", "gelu_tanh_grad", "clip_grad"}) EXPECT_EQ(vector_operands(step), 2u);
  for (const char* none : {"tan", "tan_grad", "is_nan", "not", "less", "mean", ""})
    EXPECT_EQ(vector_operands(none), 0u) << none;
}

}  // namespace
}  // namespace trireme::ops
