// Products on 8-bit floats: which ones are converted, their operands, and the accuracy of gradients.
#include "passes/precision/float8.h"

#include <gtest/gtest.h>

#include <cmath>

#include "ops/test_grad.h"
#include "passes/precision/precision.h"
#include "passes/train/train.h"
#include "tests/run_kernels.h"

namespace trireme::passes {
namespace {

using ir::ValueId;
using ops::testing::run_graph;
using tensor::DType;
using tensor::Tensor;
using tests::random_tensor;

/// Three products, a change of sign between two of them, and the sum of squares of the last one as the loss;
/// inputs x, w1, b1, w2, w3. The results after the loss are the gradients of x and of the weights.
ir::Graph network(Precision precision, tensor::DeviceKind device, int64_t width = 32, bool last = false) {
  ir::Graph g;
  const auto op = [&](const char* name, std::vector<ValueId> in, ir::Attrs attrs = {}) {
    return g.add1(ops::table().need(name), std::move(in), std::move(attrs), name);
  };
  const ValueId x = g.add_input("x", {DType::f32, {2, 9, 16}});
  const ValueId w1 = g.add_state("w1", {DType::f32, {16, width}});
  const ValueId b1 = g.add_state("b1", {DType::f32, {width}});
  const ValueId w2 = g.add_state("w2", {DType::f32, {48, width}});
  const ValueId w3 = g.add_state("w3", {DType::f32, {48, 16}});
  const ValueId h = op("neg", {op("linear", {x, w1, b1})});
  const ValueId y = op("linear", {op("linear", {h, w2}, {{"transposed", int64_t{1}}}), w3});
  const ValueId axes = g.add_constant(Tensor::from<int64_t>({3}, {0, 1, 2}));
  g.add_output(op("reduce_sum", {op("mul", {y, y}), axes}, {{"keepdims", int64_t{0}}}), "loss");
  g.sort();
  lower_precision(g, {.compute = precision, .fp8_last = last});
  g.sort();
  std::vector<ValueId> states;
  for (size_t i = 0; i < g.values().size(); ++i) {
    if (g.values()[i].kind == ir::ValueKind::state) states.push_back(ValueId(static_cast<uint32_t>(i)));
  }
  for (const ParamGradient& p : differentiate(g, g.outputs()[0], states))
    g.add_output(p.gradient, "d " + g.value(p.param).name);
  g.sort();
  if (precision == Precision::fp8) lower_float8(g, device);
  return g;
}

size_t count(const ir::Graph& g, std::string_view op, int64_t e5m2 = -1) {
  size_t found = 0;
  for (const ir::Node& n : g.nodes())
    found += n.op != nullptr && n.op_name() == op && (e5m2 < 0 || n.attrs.get_int("e5m2", 0) == e5m2);
  return found;
}

TEST(Float8Pass, OperandsAreQuantizedOnceGradientsInE5M2) {
  const ir::Graph g = network(Precision::fp8, tensor::DeviceKind::cuda);
  // Two forward products; the first one needs no gradient of x.
  EXPECT_EQ(count(g, "float8_product"), 2u + 3u);
  EXPECT_EQ(count(g, "linear") + count(g, "linear_grad_x") + count(g, "linear_grad_w"), 3u) << "the last";
  // x and the hidden rows are read by forward products and, as columns, by weight gradients.
  EXPECT_EQ(count(g, "float8_both", 0), 2u + 1u) << "x, h and w2";
  EXPECT_EQ(count(g, "float8_columns", 0), 1u) << "w1";
  EXPECT_EQ(count(g, "float8_rows"), 0u);
  EXPECT_EQ(count(g, "float8_both", 1), 1u) << "the gradient of the second product";
  EXPECT_EQ(count(g, "float8_columns", 1), 1u) << "the gradient of the first";
  for (const ir::Node& n : g.nodes()) {
    if (n.op == nullptr || n.op_name() != "float8_product") continue;
    EXPECT_EQ(g.type(n.in[0]).dtype == DType::f8e5m2 && g.type(n.in[2]).dtype == DType::f8e5m2, false);
  }
  EXPECT_EQ(count(network(Precision::fp8, tensor::DeviceKind::cuda, 32, true), "float8_product"), 8u);
}

TEST(Float8Pass, OddExtentsKeep16Bits) {
  const ir::Graph g = network(Precision::fp8, tensor::DeviceKind::cuda, 40);
  EXPECT_EQ(count(g, "float8_product"), 0u);
  EXPECT_EQ(count(g, "float8_rows") + count(g, "float8_both") + count(g, "float8_columns"), 0u);
  for (const ir::Node& n : g.nodes()) EXPECT_EQ(n.attrs.get_int("float8", 0), 0) << n.op_name();
}

TEST(Float8Pass, TheCpuSeesValuesInsteadOfCodes) {
  const ir::Graph g = network(Precision::fp8, tensor::DeviceKind::cpu);
  EXPECT_EQ(count(g, "float8_product"), 0u);
  EXPECT_EQ(count(g, "float8_values"), 10u);
}

/// Loss and gradients of the network; rows of x and columns of weights differ greatly in scale.
std::vector<Tensor> results(Precision precision, tensor::DeviceKind device) {
  ir::Graph g = network(precision, device);
  Tensor x = random_tensor({2, 9, 16}, 1);
  for (size_t i = 0; i < static_cast<size_t>(x.elements()); ++i)
    x.mutable_data<float>()[i] *= std::ldexp(1.0f, static_cast<int>(i / 16 % 5) * 3 - 6);
  std::vector<Tensor> in{x};
  std::map<std::string, Tensor> weights{{"w1", random_tensor({16, 32}, 2, 0.01f)},
                                        {"b1", random_tensor({32}, 3, 0.01f)},
                                        {"w2", random_tensor({48, 32}, 4, 30)},
                                        {"w3", random_tensor({48, 16}, 5)}};
  // States become constants, since run_graph feeds inputs only.
  for (size_t i = 0; i < g.values().size(); ++i) {
    const ir::Value& v = g.values()[i];
    if (v.kind != ir::ValueKind::state) continue;
    g.replace_uses(ValueId(static_cast<uint32_t>(i)), g.add_constant(weights.at(v.name)));
  }
  in.push_back(Tensor::scalar(1.0f));
  return run_graph(g, in);
}

double relative(const Tensor& got, const Tensor& want) {
  double off = 0, all = 0;
  const std::vector<double> a = got.to_doubles(), b = want.to_doubles();
  for (size_t i = 0; i < a.size(); ++i) off += (a[i] - b[i]) * (a[i] - b[i]), all += b[i] * b[i];
  return std::sqrt(off / all);
}

TEST(Float8Pass, LossAndGradientsAreNear) {
  const std::vector<Tensor> exact = results(Precision::f32, tensor::DeviceKind::cpu);
  const std::vector<Tensor> bf16 = results(Precision::bf16, tensor::DeviceKind::cpu);
  // E4M3 rounds by at most 2^-4, E5M2 by 2^-3; a few large rows dominate each sum, so little cancels.
  for (const auto device : {tensor::DeviceKind::cpu, tensor::DeviceKind::cuda}) {
    const std::vector<Tensor> low = results(Precision::fp8, device);
    ASSERT_EQ(low.size(), 5u);
    for (size_t i = 0; i < low.size(); ++i) {
      EXPECT_LT(relative(low[i], exact[i]), 0.15) << i;
      EXPECT_GT(relative(low[i], bf16[i]), 1e-4) << i;
    }
  }
}

}  // namespace
}  // namespace trireme::passes
