// Where bits must not depend on the number of rows, all numbers of rows use one algorithm: checked by the
// keys and shapes of choices.
#include "backend/cuda/dense/gemm_choice.h"

#include <gtest/gtest.h>

#include <set>

#include "backend/cuda/dense/gemm_product.h"

namespace trireme::cuda {
namespace {

GemmShape product(int64_t m, bool transpose_a = false, bool transpose_b = true) {
  const auto type = tensor::DType::bf16;
  return with_leading_dimensions({.m = m,
                                  .n = 4096,
                                  .k = 1024,
                                  .transpose_a = transpose_a,
                                  .transpose_b = transpose_b,
                                  .in = type,
                                  .in_b = type,
                                  .out = type});
}

TEST(GemmChoice, IsTheSameForAnyRowsInAFixedOrder) {
  const GemmOptions fixed{.fixed_order = true};
  for (const bool ta : {false, true}) {
    std::set<std::string> keys;
    for (int64_t m = 1; m <= 4096; ++m) {
      const GemmShape shape = product(m, ta);
      keys.insert(choice_key(shape, fixed, "e1"));
      const std::vector<GemmShape> measured = choice_shapes(shape, fixed);
      ASSERT_EQ(measured.size(), 3u);
      for (size_t i = 0; i < 3; ++i) {
        const GemmShape want = product((std::vector<int64_t>{16, 256, 4096})[i], ta);
        ASSERT_EQ(measured[i].m, want.m) << m;
        ASSERT_EQ(measured[i].lda, want.lda) << m;
        ASSERT_EQ(measured[i].ldc, want.ldc) << m;
      }
    }
    EXPECT_EQ(keys.size(), 1u);
  }
}

TEST(GemmChoice, IsTheSameForAnyNumberOfBatchesInAFixedOrder) {
  const GemmOptions fixed{.fixed_order = true};
  GemmShape one = product(64), many = product(64);
  many.outer = 3, many.outer_a = 64 * 1024, many.outer_c = 64 * 4096;
  EXPECT_EQ(choice_key(one, fixed, ""), choice_key(many, fixed, ""));
  EXPECT_EQ(choice_shapes(many, fixed)[0].outer, 1);
}

TEST(GemmChoice, TellsApartWhatTheAlgorithmDependsOn) {
  for (const bool is_fixed : {false, true}) {
    const GemmOptions options{.fixed_order = is_fixed};
    std::set<std::string> keys{choice_key(product(8), options, "e1")};
    keys.insert(choice_key(product(8), options, "e2"));
    keys.insert(choice_key(product(8, true), options, "e1"));
    keys.insert(choice_key(product(8, false, false), options, "e1"));
    keys.insert(choice_key(product(8), {.tf32 = true, .fixed_order = is_fixed}, "e1"));
    GemmShape other = product(8);
    other.n = 4095;
    keys.insert(choice_key(other, options, "e1"));
    other = product(8);
    other.out = tensor::DType::f32;
    keys.insert(choice_key(other, options, "e1"));
    other = product(8);
    other.finish.residual = true;
    keys.insert(choice_key(other, options, "e1"));
    EXPECT_EQ(keys.size(), 8u);
  }
}

TEST(GemmChoice, IsOfTheShapeItselfOtherwise) {
  EXPECT_NE(choice_key(product(8), {}, ""), choice_key(product(9), {}, ""));
  const std::vector<GemmShape> measured = choice_shapes(product(9), {});
  ASSERT_EQ(measured.size(), 1u);
  EXPECT_EQ(measured[0].m, 9);
}

TEST(GemmChoice, AlignmentOfAFixedOrderFollowsFromRowsOfTheMatrices) {
  GemmShape odd = product(8);
  odd.n = 4099, odd.ldc = 4099;
  EXPECT_EQ(choice_alignment(odd, {.fixed_order = true}), 2);
  EXPECT_EQ(choice_alignment(product(8), {.fixed_order = true}), 16);
}

}  // namespace
}  // namespace trireme::cuda
