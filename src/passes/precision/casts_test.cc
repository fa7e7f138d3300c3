// Casts that kernels absorb: which ones disappear, which remain, and that no value changes.
#include "passes/precision/casts.h"

#include <gtest/gtest.h>

#include "base/rng.h"
#include "ops/table.h"

namespace trireme::passes {
namespace {

using tensor::DeviceKind;
using tensor::DType;
using tensor::Tensor;

ir::Graph parsed(const std::string& text) {
  ir::Graph g = ir::parse(text, ops::table());
  g.sort();
  return g;
}

std::string_view type_of(const ir::Graph& g, ir::ValueId id) {
  return id == ir::kNoValue ? "_" : name_of(g.type(id).dtype);
}

std::string type_outline(const ir::Graph& g) {
  std::string out;
  for (const ir::Node& n : g.nodes()) {
    if (n.op == nullptr) continue;
    out += std::string(n.op_name());
    for (ir::ValueId id : n.in) out += base::concat(" ", type_of(g, id));
    out += base::concat(" ->");
    for (ir::ValueId id : n.out) out += base::concat(" ", type_of(g, id));
    out += "\n";
  }
  return out;
}

std::vector<Tensor> values_of(const ir::Graph& g, const std::vector<Tensor>& inputs) {
  base::ThreadPool pool(1);
  std::vector<Tensor> at(g.values().size());
  for (size_t i = 0; i < at.size(); ++i) at[i] = g.values()[i].data;
  for (size_t i = 0; i < inputs.size(); ++i) at[ir::index(g.inputs()[i])] = inputs[i];
  for (const ir::Node& n : g.nodes()) {
    if (n.op == nullptr) continue;
    std::vector<Tensor> in;
    for (ir::ValueId id : n.in) in.push_back(id == ir::kNoValue ? Tensor() : at[ir::index(id)]);
    const auto out = ops::evaluate(ops::table().need(n.op_name()), n.attrs, in, n.out.size(), pool);
    for (size_t r = 0; r < out.size(); ++r) {
      if (n.out[r] != ir::kNoValue) at[ir::index(n.out[r])] = out[r];
    }
  }
  std::vector<Tensor> results;
  for (ir::ValueId id : g.outputs()) results.push_back(at[ir::index(id)]);
  return results;
}

Tensor halves(tensor::Dims dims, uint64_t seed) {
  Tensor x = Tensor::empty(DType::bf16, dims);
  base::Rng rng(seed);
  for (auto& v : x.mutable_data<tensor::BFloat16>()) v = tensor::BFloat16(static_cast<float>(rng.normal()));
  return x;
}

void expect_absorbed(const std::string& text, const std::string& after) {
  ir::Graph g = parsed(text);
  std::vector<Tensor> inputs;
  for (ir::ValueId id : g.inputs()) inputs.push_back(halves(g.type(id).shape.to_dims(), inputs.size() + 1));
  const std::vector<Tensor> want = values_of(g, inputs);
  EXPECT_EQ(absorb_casts(g, DeviceKind::cpu), 0u);
  absorb_casts(g, DeviceKind::cuda);
  ir::verify(g);
  EXPECT_EQ(type_outline(g), after) << ir::print(g);
  const std::vector<Tensor> got = values_of(g, inputs);
  for (size_t i = 0; i < want.size(); ++i) EXPECT_TRUE(got[i].same_as(want[i])) << i << ir::print(g);
}

TEST(AbsorbCasts, ChainsOperandByOperand) {
  expect_absorbed(R"(graph "g"
  %0 = input "x" : bf16[6,40]
  %1 = input "y" : bf16[6,40]
  %2 = param "p" : f32[40]#seed=3
  %3 = cast(%0) {to=1}
  %4 = cast(%1) {to=1}
  %5 = fused_elementwise(%3, %2, %4) {steps=["r0 mul i0 i1", "o0 add r0 i2"], params=[0.5, 0.5, 0.5, 0.5]}
  %6 = cast(%5) {to=16}
  %7 = tanh(%3)
  return %6 "a", %7 "b"
)",
                  "fused_elementwise bf16 f32 bf16 -> bf16\n"
                  "fused_elementwise bf16 -> f32\n");
}

TEST(AbsorbCasts, AResultThatIsAlsoReadInF32StaysF32) {
  expect_absorbed(R"(graph "g"
  %0 = input "x" : bf16[6,40]
  %1 = cast(%0) {to=1}
  %2 = relu(%1)
  %3 = cast(%2) {to=16}
  return %2 "a", %3 "b"
)",
                  "fused_elementwise bf16 -> f32\n"
                  "cast f32 -> bf16\n");
}

/// With a second reader in f32 the chain remains: it is neither computed twice nor narrowed for both.
TEST(AbsorbCasts, AResultWithTwoReadersIsNarrowedForBothOrNeither) {
  expect_absorbed(R"(graph "g"
  %0 = input "x" : bf16[6,40]
  %1 = cast(%0) {to=1}
  %2 = relu(%1)
  %3 = cast(%2) {to=16}
  %4 = reduce_sum(%2)
  return %3 "a", %4 "b"
)",
                  "fused_elementwise bf16 -> f32\n"
                  "cast f32 -> bf16\n"
                  "reduce_sum f32 -> f32\n");
  expect_absorbed(R"(graph "g"
  %0 = input "x" : bf16[6,40]
  %1 = cast(%0) {to=1}
  %2 = exp(%1)
  %3 = cast(%2) {to=16}
  %4 = cast(%2) {to=10}
  return %3 "a", %4 "b"
)",
                  "fused_elementwise bf16 -> f32\n"
                  "cast f32 -> bf16\n"
                  "cast f32 -> f16\n");
  expect_absorbed(R"(graph "g"
  %0 = input "x" : bf16[6,40]
  %1 = cast(%0) {to=1}
  %2 = exp(%1)
  %3 = cast(%2) {to=16}
  %4 = cast(%2) {to=16}
  return %3 "a", %4 "b"
)",
                  "fused_elementwise bf16 -> bf16\n");
}

TEST(AbsorbCasts, RowsWhereTheResultFollows) {
  expect_absorbed(R"(graph "g"
  %0 = input "x" : bf16[6,40]
  %1 = param "s" : f32[40]#seed=3
  %2 = cast(%0) {to=1}
  %3 = layer_norm(%2, %1)
  %4 = cast(%3) {to=16}
  %5 = softmax(%2)
  return %4 "a", %5 "b"
)",
                  "cast bf16 -> f32\n"
                  "layer_norm bf16 f32 -> bf16\n"
                  "softmax f32 -> f32\n");
}

TEST(AbsorbCasts, NormsOverF32RowsRoundTheirResults) {
  // y is read as 16 bits only; dx as 16 bits by a product and as f32 by the norm before it.
  expect_absorbed(R"(graph "g"
  %0 = input "x" : bf16[6,40]
  %1 = input "dy" : bf16[6,40]
  %2 = param "s" : f32[40]#seed=3
  %3 = param "r" : f32[6,40]#seed=4
  %4 = layer_norm(%3, %2)
  %5 = cast(%4) {to=16}
  %6 = cast(%1) {to=1}
  %7, %8, %9 = layer_norm_grad(%6, %3, %2, %3)
  %10 = cast(%7) {to=16}
  %11 = rms_norm(%7, %2)
  return %5 "a", %7 "b", %8 "c", %9 "d", %10 "e", %11 "f", %0 "g"
)",
                  "layer_norm f32 f32 -> _ _ _ bf16\n"
                  "layer_norm_grad bf16 f32 f32 f32 -> f32 f32 f32 bf16\n"
                  "rms_norm f32 f32 -> f32\n");
}

TEST(AbsorbCasts, RotationsBehindViews) {
  expect_absorbed(R"(graph "g"
  %0 = input "x" : bf16[2,5,24]
  %1 = param "c" : f32[2,5,4]#seed=3
  %2 = const : i64[4]{2, 5, 3, 8}
  %3 = cast(%0) {to=1}
  %4 = rotary_embedding(%3, %1, %1) {num_heads=3}
  %5 = reshape(%4, %2)
  %6 = cast(%5) {to=16}
  return %6 "a"
)",
                  "rotary_embedding bf16 f32 f32 -> bf16\n"
                  "reshape bf16 i64 -> bf16\n");
}

TEST(AbsorbCasts, LossesReadTheScoresOfTheProduct) {
  expect_absorbed(R"(graph "g"
  %0 = input "x" : bf16[6,40]
  %1 = const : i64[6]{0, 39, 7, -100, 3, 3}
  %2 = param "d" : f32[]#seed=3
  %3 = cast(%0) {to=1}
  %4, %5 = cross_entropy(%3, %1)
  %6 = cross_entropy_grad(%3, %1, %5, %2)
  %7 = cast(%6) {to=16}
  return %4 "a", %7 "b"
)",
                  "cross_entropy bf16 i64 -> f32 f32\n"
                  "cross_entropy_grad bf16 i64 f32 f32 -> bf16\n");
}

}  // namespace
}  // namespace trireme::passes
