// Gradients of the elementwise ops against central differences, and every kernel of the `_grad` ops.
#include <cmath>

#include "ops/elementwise/fused.h"
#include "ops/test_grad.h"
#include "tests/unary_cases.h"

namespace trireme::ops {
namespace {

using namespace testing;  // NOLINT: the tests' own vocabulary

struct Trial {
  std::string name;
  tests::Range range;
  ir::Attrs attrs = {};
};

/// Every unary operator with a gradient, in the range of its row of tests/unary_cases.h. Random values hit a
/// kink with probability zero, which the differences assert.
std::vector<Trial> unary_trials() {
  std::vector<Trial> trials;
  for (const ElementwiseRow& row : unary_rows()) {
    if (row.gradient.row == nullptr && row.gradient.rule == nullptr) continue;
    const tests::UnaryCase* c = tests::unary_case(row.name);
    if (c == nullptr) {
      ADD_FAILURE() << row.name << " has no row in tests/unary_cases.h";
      continue;
    }
    Trial trial{std::string(row.name), c->slope};
    const double values[] = {c->a, c->b};
    for (size_t i = 0; i < row.attrs.size(); ++i) trial.attrs.set(std::string(row.attrs[i].name), values[i]);
    trials.push_back(trial);
  }
  const tests::Range gelu = tests::unary_case("gelu")->slope;
  trials.push_back({"gelu", gelu});
  trials.push_back({"gelu", gelu, {{"approximate", std::string("tanh")}}});
  trials.push_back({"identity", {-1, 1}});
  trials.push_back({"dropout", {-1, 1}});
  return trials;
}

TEST(ElementwiseGrad, UnaryOpsMatchDifferences) {
  for (const Trial& c : unary_trials()) {
    for (const tensor::Dims& dims : {tensor::Dims{}, tensor::Dims{0}, tensor::Dims{5, 7}}) {
      expect_gradient({.op = c.name,
                       .in = {random_tensor(DType::f64, dims, c.range.low, c.range.high)},
                       .attrs = c.attrs});
    }
  }
}

/// Each `_grad` op as a vector kernel, in half precision and as a fused step, against double.
TEST(ElementwiseGrad, KernelsAgreeWithDouble) {
  for (const Trial& c : unary_trials()) {
    const std::string name = c.name + "_grad";
    if (table().find(name) == nullptr) continue;
    for (int64_t n : {7, 1037}) {
      const Tensor dy = random_tensor(DType::f64, {n}, -2, 2),
                   v = random_tensor(DType::f64, {n}, c.range.low, c.range.high, 2);
      const std::vector<double> want = run(name, {dy, v}, c.attrs)[0].to_doubles();
      for (DType t : {DType::f32, DType::f16, DType::bf16}) {
        const ir::Attrs to{{"to", int64_t{t == DType::f32 ? 1 : t == DType::f16 ? 10 : 16}}};
        const Tensor dy_t = run("cast", {dy}, to)[0], v_t = run("cast", {v}, to)[0];
        const ir::Attrs back{{"to", int64_t{11}}};
        // The exact result for the rounded operands, so that only the kernel's own rounding is tested.
        const std::vector<double> exact =
            run(name, {run("cast", {dy_t}, back)[0], run("cast", {v_t}, back)[0]}, c.attrs)[0].to_doubles();
        const std::vector<double> got = run(name, {dy_t, v_t}, c.attrs)[0].to_doubles();
        const double tolerance = t == DType::f32 ? 3e-6 : t == DType::f16 ? 2e-3 : 2e-2;
        for (size_t i = 0; i < got.size(); ++i) {
          ASSERT_NEAR(got[i], exact[i], tolerance * std::max(1.0, std::fabs(exact[i]))) << name << " " << i;
        }
      }
    }
  }
}

/// Steps of fused_elementwise compute the same bits as the separate ops.
TEST(ElementwiseGrad, FusedStepsComputeTheSame) {
  const Tensor dy = random_tensor(DType::f32, {6, 300}, -2, 2),
               x = random_tensor(DType::f32, {6, 300}, 0.1, 2, 2);
  for (const Trial& c : unary_trials()) {
    const std::string name = c.name + "_grad";
    const ir::OpDef* op = table().find(name);
    if (op == nullptr || cpu_kernel_count(*op) < 2) continue;
    const std::vector<tensor::TensorType> types{dy.type(), x.type()};
    const ir::NodeView node{c.attrs, types, {}, {nullptr, nullptr}, {true, true}};
    const auto step = fused_function(name, node);
    ASSERT_TRUE(step) << name;
    const ir::Attrs attrs{{"steps", std::vector<std::string>{"o0 " + step->name + " i0 i1"}},
                          {"params", std::vector<double>{step->params[0], step->params[1]}},
                          {"constants", std::vector<double>{}}};
    const Tensor want = run(name, {dy, x}, c.attrs)[0];
    EXPECT_TRUE(run("fused_elementwise", {dy, x}, attrs)[0].same_as(want)) << name;
    const Tensor scalar = Tensor::scalar(0.5f);
    const Tensor wide = run("expand", {scalar, ints({6, 300})})[0];
    EXPECT_TRUE(run("fused_elementwise", {scalar, x}, attrs)[0].same_as(run(name, {wide, x}, c.attrs)[0]));
  }
}

TEST(ElementwiseGrad, BinaryOpsMatchDifferencesUnderBroadcasts) {
  const std::vector<std::pair<tensor::Dims, tensor::Dims>> shapes{
      {{3, 5}, {3, 5}}, {{3, 5}, {5}}, {{5}, {3, 5}},      {{3, 1}, {1, 4}},
      {{2, 3, 1}, {}},  {{}, {}},      {{1, 1, 3}, {4, 1}}};
  std::vector<std::string> names{"pow"};
  for (const auto* rows : {&binary_rows(), &variadic_rows()}) {
    for (const ElementwiseRow& row : *rows) {
      if (row.gradient.rule != nullptr && row.attrs.empty()) names.emplace_back(row.name);
    }
  }
  EXPECT_GE(names.size(), 10u);
  for (const std::string& name : names) {
    for (const auto& [a, b] : shapes) {
      expect_gradient(
          {.op = name,
           .in = {random_tensor(DType::f64, a, 0.4, 2), random_tensor(DType::f64, b, 0.4, 2, 9)}});
    }
  }
  const Tensor x = random_tensor(DType::f64, {3, 4}, -2, 2);
  expect_gradient({.op = "prelu", .in = {x, random_tensor(DType::f64, {4}, 0.1, 0.5, 3)}});
  for (int64_t truncates : {0, 1}) {
    expect_gradient({.op = "mod",
                     .in = {x, random_tensor(DType::f64, {4}, 0.5, 0.9, 3)},
                     .attrs = {{"fmod", truncates}}});
  }
}

TEST(ElementwiseGrad, VariadicOpsMatchDifferences) {
  for (const ElementwiseRow& row : variadic_rows()) {
    for (size_t count : {1, 3}) {
      std::vector<Tensor> in;
      for (size_t i = 0; i < count; ++i)
        in.push_back(random_tensor(DType::f64, i == 1 ? tensor::Dims{4} : tensor::Dims{3, 4}, -1, 1, 5 + i));
      expect_gradient({.op = std::string(row.name), .in = in});
    }
  }
}

/// The gradient of operand 0 of `op` for dy = 1.
std::vector<double> slope(const std::string& op, const std::vector<Tensor>& in) {
  ir::Graph graph;
  std::vector<ValueId> ids;
  for (const Tensor& t : in) ids.push_back(graph.add_input("x", t.type()));
  const ValueId y = graph.add1(table().need(op), ids);
  std::vector<ValueId> grads(graph.values().size(), ir::kNoValue);
  std::vector<char> wanted(graph.values().size(), 0);
  wanted[index(ids[0])] = 1;
  Tensor ones = Tensor::empty(DType::f64, graph.type(y).shape.to_dims());
  for (double& v : ones.mutable_data<double>()) v = 1;
  grads[index(y)] = graph.add_constant(ones);
  backpropagate(graph, 0, wanted, grads);
  graph.set_outputs({grads[index(ids[0])]}, {"d"});
  graph.sort();
  return run_graph(graph, in)[0].to_doubles();
}

TEST(ElementwiseGrad, TiesShareEvenlyAndKinksAreAsInPyTorch) {
  const Tensor a = Tensor::from<double>({3}, std::vector<double>{1, 2, 3});
  const Tensor b = Tensor::from<double>({3}, std::vector<double>{1, 1, 4});
  EXPECT_EQ(slope("max", {a, b}), (std::vector<double>{0.5, 1, 0}));
  EXPECT_EQ(slope("min", {a, b}), (std::vector<double>{0.5, 0, 1}));
  const Tensor zero = Tensor::from<double>({3}, std::vector<double>{-1, 0, 1});
  EXPECT_EQ(slope("relu", {zero}), (std::vector<double>{0, 0, 1}));
  EXPECT_EQ(slope("abs", {zero}), (std::vector<double>{-1, 0, 1}));
  EXPECT_EQ(slope("leaky_relu", {zero}), (std::vector<double>{0.01, 0.01, 1}));
  EXPECT_EQ(slope("prelu", {zero, Tensor::scalar(0.25)}), (std::vector<double>{0.25, 0.25, 1}));
}

TEST(ElementwiseGrad, PowersOfConstantExponents) {
  for (double e : {-1.5, -1.0, 0.0, 0.5, 1.0, 2.0, 3.0, 2.5}) {
    expect_gradient({.op = "pow",
                     .in = {random_tensor(DType::f64, {2, 3}, 0.5, 2), Tensor::scalar(e)},
                     .constant = {1},
                     .skip = {1}});
  }
  // Integer exponents per element, one of them 0 at base 0, where the slope is 0 rather than NaN.
  const Tensor x = Tensor::from<double>({3}, std::vector<double>{0, -1.5, 2});
  expect_gradient({.op = "pow", .in = {x, ints({0, 3, 2})}, .tolerance = 1e-5});
}

TEST(ElementwiseGrad, ClipMatchesDifferencesForTheOperandAndTheBounds) {
  const Tensor x = random_tensor(DType::f64, {4, 5}, -2, 2), low = Tensor::scalar(-0.7),
               high = Tensor::scalar(1.1);
  expect_gradient({.op = "clip", .in = {x, low, high}});
  expect_gradient({.op = "clip", .in = {x, low, high}, .constant = {1, 2}, .skip = {1, 2}});
  expect_gradient({.op = "clip", .in = {x, Tensor(), high}});
  expect_gradient({.op = "clip", .in = {x, low}});
  expect_gradient({.op = "clip", .in = {x}});
}

TEST(ElementwiseGrad, ClipGradVectorKernel) {
  const Tensor x = random_tensor(DType::f32, {1037}, -2, 2), dy = random_tensor(DType::f32, {1037}, -2, 2, 4);
  const std::vector<Tensor> in{dy, x, Tensor::scalar(-0.5f), Tensor::scalar(1.0f)};
  EXPECT_TRUE(run_kernel("clip_grad", "vector", in).same_as(run_kernel("clip_grad", "reference", in)));
}

TEST(ElementwiseGrad, WhereAndCasts) {
  const Tensor a = random_tensor(DType::f64, {3, 4}, -1, 1), b = random_tensor(DType::f64, {4}, -1, 1, 2);
  Tensor c = Tensor::empty(DType::boolean, {3, 1});
  for (size_t i = 0; i < 3; ++i) c.mutable_data<bool>()[i] = i != 1;
  expect_gradient({.op = "where", .in = {c, a, b}});
  expect_gradient({.op = "cast", .in = {a}, .attrs = {{"to", int64_t{11}}}});
  // With f32 in between, the differences contain its rounding, hence the larger step.
  expect_gradient({.op = "cast", .in = {a}, .attrs = {{"to", int64_t{1}}}, .step = 1e-2, .tolerance = 1e-4});
}

TEST(ElementwiseGrad, FusedChainsAreDifferentiatedByTheirExpansion) {
  const std::vector<std::string> steps{"r0 mul i0 i1", "r1 gelu r0", "o0 add r1 c0"};
  const ir::Attrs attrs{
      {"steps", steps}, {"params", std::vector<double>(6, 0.0)}, {"constants", std::vector<double>{0.5}}};
  ir::Graph graph;
  const ValueId a = graph.add_input("a", {DType::f32, {2, 3}}), b = graph.add_input("b", {DType::f32, {3}});
  const ValueId y = graph.add1(table().need("fused_elementwise"), {a, b}, attrs);
  std::vector<char> wanted{1, 1};
  std::vector<ValueId> grads(graph.values().size(), ir::kNoValue);
  const Tensor dy = random_tensor(DType::f32, {2, 3}, -1, 1);
  grads[index(y)] = graph.add_constant(dy);
  backpropagate(graph, 0, wanted, grads);
  graph.set_outputs({grads[index(a)], grads[index(b)]}, {"da", "db"});
  graph.sort();
  const Tensor av = random_tensor(DType::f32, {2, 3}, -1, 1, 3),
               bv = random_tensor(DType::f32, {3}, -1, 1, 4);
  const auto got = run_graph(graph, {av, bv});
  std::vector<double> db(3, 0.0);
  for (size_t i = 0; i < 6; ++i) {
    const double x = av.data<float>()[i], w = bv.data<float>()[i % 3], t = x * w;
    const double slope_at =
        0.5 * std::erfc(-t / std::sqrt(2.0)) + t * std::exp(-t * t / 2) / std::sqrt(2 * M_PI);
    EXPECT_NEAR(got[0].data<float>()[i], dy.data<float>()[i] * slope_at * w, 1e-6);
    db[i % 3] += dy.data<float>()[i] * slope_at * x;
  }
  for (size_t i = 0; i < 3; ++i) EXPECT_NEAR(got[1].data<float>()[i], db[i], 1e-6);
}

}  // namespace
}  // namespace trireme::ops
