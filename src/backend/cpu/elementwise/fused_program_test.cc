// Fused programs against a naive interpreter in double, over broadcasts, sizes, levels and thread counts.
#include "backend/cpu/elementwise/fused_program.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "backend/cpu/simd/simd_level.h"
#include "base/error.h"

namespace trireme::cpu {
namespace {

std::vector<float> wave(size_t n, double phase) {
  std::vector<float> v(n);
  for (size_t i = 0; i < n; ++i)
    v[i] = static_cast<float>(std::sin(static_cast<double>(i) * 0.7 + phase) * 2);
  return v;
}

// out0 = gelu(x * scale[row] + bias[col]) + s; out1 = out0 > 0 ? x : c0
FusedProgram sample() {
  FusedProgram p;
  p.outputs = 2;
  p.constants = {0.125f};
  p.steps = {
      fused_muladd(fused_reg(0), fused_input(0), fused_input(1), fused_input(2)),
      fused_unary(UnaryOp::gelu_, fused_reg(1), fused_reg(0)),
      fused_binary(BinaryOp::add_, fused_output(0), fused_reg(1), fused_input(3)),
      fused_unary(UnaryOp::relu_, fused_reg(0), fused_output(0)),  // 0 where out0 <= 0
      fused_select(fused_output(1), fused_reg(0), fused_input(0), fused_constant(0)),
  };
  return p;
}

void check_sample(int64_t rows, int64_t cols, base::ThreadPool& pool) {
  const size_t n = static_cast<size_t>(rows * cols);
  const std::vector<float> x = wave(n, 0), scale = wave(static_cast<size_t>(rows), 1),
                           bias = wave(static_cast<size_t>(cols), 2), s = {0.5f};
  std::vector<float> y(n + 1, -77.0f), z(n + 1, -77.0f);
  const FusedInput inputs[] = {{x.data(), FusedShape::full},
                               {scale.data(), FusedShape::column},
                               {bias.data(), FusedShape::row},
                               {s.data(), FusedShape::scalar}};
  float* const outputs[] = {y.data(), z.data()};
  const FusedProgram program = sample();
  verify_fused(program, 4);
  run_fused(program, {inputs, outputs, rows, cols}, pool);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < cols; ++c) {
      const size_t i = static_cast<size_t>(r * cols + c);
      const double v =
          static_cast<double>(x[i]) * scale[static_cast<size_t>(r)] + bias[static_cast<size_t>(c)];
      const double want = 0.5 * v * (1 + std::erf(v / std::sqrt(2.0))) + 0.5;
      ASSERT_NEAR(y[i], want, 2e-6) << rows << "x" << cols << " at " << r << "," << c;
      ASSERT_EQ(z[i], y[i] > 0 ? x[i] : 0.125f);
    }
  }
  ASSERT_EQ(y[n], -77.0f);
  ASSERT_EQ(z[n], -77.0f);
}

class FusedAtLevel : public testing::TestWithParam<SimdLevel> {
 protected:
  void SetUp() override { simd_force(GetParam()); }
  void TearDown() override { simd_unforce(); }
};

TEST_P(FusedAtLevel, EveryBroadcastAndSize) {
  base::ThreadPool one(1), four(4);
  for (int64_t rows : {0, 1, 2, 7, 130}) {
    for (int64_t cols : {0, 1, 3, 16, 100, 255, 256, 511, 513, 1030}) {
      check_sample(rows, cols, one);
      check_sample(rows, cols, four);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Levels, FusedAtLevel, testing::ValuesIn(simd_levels()),
                         [](const auto& level) { return level.param.name; });

TEST(Fused, LongChainInPlaceEqualsStepByStep) {
  base::ThreadPool pool(2);
  const std::vector<float> x = wave(40007, 0);
  FusedProgram p;
  p.constants = {0.99f};
  std::vector<float> want = x;
  for (int i = 0; i < 100; ++i) {
    const FusedRef from = i == 0 ? fused_input(0) : fused_reg(0);
    p.steps.push_back(i % 2 == 0 ? fused_binary(BinaryOp::mul_, fused_reg(0), from, fused_constant(0))
                                 : fused_unary(UnaryOp::tanh_, fused_reg(0), from));
    for (float& v : want) {
      if (i % 2 == 0) v *= 0.99f;
    }
    if (i % 2 != 0)
      unary({UnaryOp::tanh_}, want.data(), want.data(), static_cast<int64_t>(want.size()), pool);
  }
  p.steps.back().dst = fused_output(0);
  verify_fused(p, 1);
  std::vector<float> y = x;
  const FusedInput in[] = {{y.data(), FusedShape::full}};
  float* const out[] = {y.data()};
  run_fused(p, {in, out, 1, static_cast<int64_t>(y.size())}, pool);
  EXPECT_EQ(0, std::memcmp(y.data(), want.data(), y.size() * 4));
}

TEST(Fused, AllScalarOperandsFillTheOutput) {
  base::ThreadPool pool(1);
  const float a = 2.0f;
  FusedProgram p;
  p.constants = {3.0f};
  p.steps = {fused_binary(BinaryOp::mul_, fused_reg(0), fused_input(0), fused_constant(0)),
             fused_unary(UnaryOp::neg_, fused_reg(1), fused_input(0)),
             fused_binary(BinaryOp::add_, fused_output(0), fused_reg(0), fused_reg(1))};
  std::vector<float> y(700);
  const FusedInput in[] = {{&a, FusedShape::scalar}};
  float* const out[] = {y.data()};
  run_fused(p, {in, out, 7, 100}, pool);
  for (float v : y) ASSERT_EQ(v, 4.0f);
}

TEST(Fused, VerifyNamesWhatIsWrong) {
  FusedProgram p;
  p.steps = {fused_unary(UnaryOp::relu_, fused_output(0), fused_reg(3))};
  EXPECT_THROW(verify_fused(p, 1), base::Error);
  p.steps = {fused_unary(UnaryOp::relu_, fused_reg(0), fused_input(0))};
  EXPECT_THROW(verify_fused(p, 1), base::Error);
  p.steps = {fused_unary(UnaryOp::relu_, fused_output(0), fused_input(1))};
  EXPECT_THROW(verify_fused(p, 1), base::Error);
  p.steps = {fused_unary(UnaryOp::relu_, fused_output(0), fused_input(0))};
  EXPECT_NO_THROW(verify_fused(p, 1));
}

}  // namespace
}  // namespace trireme::cpu
