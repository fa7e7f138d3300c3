// deform_conv: its expansion against its kernel, its gradient against central differences.
#include "ops/conv/deform_expand.h"
#include "ops/test_grad.h"

namespace trireme::ops {
namespace {

using namespace testing;  // NOLINT: the tests' own vocabulary

struct DeformCase {
  tensor::Dims x, w;
  int64_t oh, ow, group = 1, offset_group = 1;
  bool has_bias = true, has_mask = true;
  ir::Attrs attrs = {};
};

GradCase grad_case(const DeformCase& c) {
  const auto values = [](tensor::Dims dims, double low, double high, uint64_t seed) {
    return random_tensor(DType::f64, std::move(dims), low, high, seed);
  };
  const int64_t n = c.x[0], taps = c.w[2] * c.w[3];
  ir::Attrs attrs = c.attrs;
  attrs.set("group", c.group);
  attrs.set("offset_group", c.offset_group);
  // The expansion rounds coordinates to f32, hence larger steps and a larger tolerance.
  return {.op = "deform_conv",
          .in = {values(c.x, -1, 1, 1), values(c.w, -1, 1, 2),
                 values({n, c.offset_group * 2 * taps, c.oh, c.ow}, 0.1, 0.9, 3),
                 c.has_bias ? values({c.w[0]}, -1, 1, 4) : Tensor(),
                 c.has_mask ? values({n, c.offset_group * taps, c.oh, c.ow}, 0.2, 1, 5) : Tensor()},
          .attrs = attrs,
          .step = 1e-4,
          .tolerance = 1e-4};
}

const std::vector<DeformCase>& deform_cases() {
  static const std::vector<DeformCase> all{
      {{1, 2, 4, 5}, {3, 2, 2, 3}, 3, 3},
      {{2, 4, 4, 4}, {2, 2, 3, 3}, 4, 4, 2, 2, true, true, {{"pads", std::vector<int64_t>{1, 1, 1, 1}}}},
      {{1, 2, 6, 5},
       {2, 2, 2, 2},
       2,
       3,
       1,
       1,
       false,
       false,
       {{"strides", std::vector<int64_t>{2, 1}}, {"dilations", std::vector<int64_t>{2, 2}}}},
  };
  return all;
}

TEST(DeformGrad, MatchesDifferences) {
  for (const DeformCase& c : deform_cases()) expect_gradient(grad_case(c));
}

TEST(DeformGrad, ExpansionComputesTheSame) {
  for (const DeformCase& c : deform_cases()) {
    const GradCase g = grad_case(c);
    ir::Graph graph;
    std::vector<ValueId> ids;
    std::vector<Tensor> inputs;
    for (const Tensor& t : g.in) {
      ids.push_back(t.defined() ? graph.add_input("x", t.type()) : ir::kNoValue);
      if (t.defined()) inputs.push_back(t);
    }
    const ir::Node node{
        .op = &table().need("deform_conv"), .attrs = g.attrs, .in = ids, .out = {}, .from = {}};
    graph.set_outputs(expand_deform_conv(graph, node), {"y"});
    graph.sort();
    const std::vector<double> got = run_graph(graph, inputs)[0].to_doubles();
    const std::vector<double> want = run("deform_conv", g.in, g.attrs)[0].to_doubles();
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-5);
  }
}

}  // namespace
}  // namespace trireme::ops
