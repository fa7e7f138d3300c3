// Casts that kernels do as they read and write: which go, which stay, and that no value changes.
#include "passes/casts.h"

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

std::string outline(const ir::Graph& g) {
  std::string out;
  for (const ir::Node& n : g.nodes()) {
    if (n.op == nullptr) continue;
    out += std::string(n.op_name());
    for (ir::ValueId id : n.in) out += base::concat(" ", name_of(g.type(id).dtype));
    out += base::concat(" ->");
    for (ir::ValueId id : n.out) out += base::concat(" ", name_of(g.type(id).dtype));
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
  EXPECT_EQ(outline(g), after) << ir::print(g);
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
                  "softmax f32 -> f32\n"
                  "layer_norm bf16 f32 -> bf16\n");
}

}  // namespace
}  // namespace trireme::passes
