// Tests that graphs in 16-bit floats become f32 throughout, and that others stay as they are.
#include "passes/train/wide_floats.h"

#include <gtest/gtest.h>

#include "ops/test_grad.h"

namespace trireme::passes {
namespace {

using ir::ValueId;
using tensor::DType;
using tensor::Tensor;

constexpr int64_t kToHalf = 10, kToFloat = 1;

/// x in f32, as converters of files keep it, through a product with f16 operands.
ir::Graph half_product(bool has_weight) {
  ir::Graph g;
  const auto add = [&](const char* op, std::vector<ValueId> in, ir::Attrs attrs = {}) {
    return g.add1(ops::table().need(op), std::move(in), std::move(attrs));
  };
  const Tensor weight = ops::testing::as_type(Tensor::from<float>({2, 1}, {0.5, 3}), DType::f16);
  const ValueId x = g.add_input("x", {DType::f32, {1, 2}});
  const ValueId w = has_weight ? g.add_param("w", weight) : g.add_constant(weight, "w");
  const ValueId half = add("cast", {x}, {{"to", kToHalf}});
  const ValueId like = add("cast_like", {add("matmul", {half, w}), w});
  g.add_output(add("cast", {like}, {{"to", kToFloat}}), "y");
  g.sort();
  return g;
}

bool has_type(const ir::Graph& graph, DType type) {
  for (const ir::Value& v : graph.values()) {
    if (v.type.dtype == type) return true;
  }
  return false;
}

TEST(WideFloats, AGraphWithHalfWeightsComputesInF32) {
  ir::Graph g = half_product(true);
  EXPECT_EQ(widen_half_floats(g), 1u);
  ir::verify(g);
  EXPECT_FALSE(has_type(g, DType::f16));
  const Tensor y = ops::testing::run_graph(g, {Tensor::from<float>({1, 2}, {1.0001f, 2})})[0];
  EXPECT_NEAR(y.to_doubles()[0], 6.50005, 1e-6);  // 6.5 from x in f16
  EXPECT_EQ(widen_half_floats(g), 0u);
}

TEST(WideFloats, InputsAndOutputsFollow) {
  ir::Graph g;
  const ValueId x = g.add_input("x", {DType::bf16, {1, 2}});
  const ValueId w = g.add_param("w", Tensor::zeros(DType::bf16, {2, 2}));
  g.add_output(g.add1(ops::table().need("matmul"), {x, w}), "y");
  g.sort();
  EXPECT_EQ(widen_half_floats(g), 1u);
  EXPECT_EQ(g.type(g.inputs()[0]).dtype, DType::f32);
  EXPECT_EQ(g.type(g.outputs()[0]).dtype, DType::f32);
}

TEST(WideFloats, WithoutHalfWeightsRoundingStays) {
  ir::Graph g = half_product(false);
  EXPECT_EQ(widen_half_floats(g), 0u);
  EXPECT_TRUE(has_type(g, DType::f16));
}

}  // namespace
}  // namespace trireme::passes
