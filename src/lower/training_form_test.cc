// Which values of a loss graph become states: tensors behind identities, statistics of batch norms, but not
// frozen weights. Dropout gets its training form. Which branches of `if` nodes are opened before.
#include "lower/training_form.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>

#include "lower/known_branches.h"
#include "lower/step_lowering.h"
#include "ops/test_grad.h"
#include "passes/lists/lists.h"

namespace trireme::lower {
namespace {

using ir::ValueId;
using tensor::Dim;
using tensor::DType;
using tensor::Tensor;
using tensor::TensorType;

/// batch_norm of x with tensors behind identities, and a sum as the loss.
class Network {
 public:
  ir::Graph graph;

  ValueId add(const char* op, std::vector<ValueId> in, ir::Attrs attrs = {}) {
    return graph.add1(ops::table().need(op), std::move(in), std::move(attrs));
  }
  ValueId param(const char* name) { return graph.add_param(name, Tensor::zeros(DType::f32, {4})); }
  ValueId bias() { return graph.add_param("bias", Tensor::zeros(DType::f32, {1})); }
  ValueId handed_on(ValueId id) { return add("identity", {add("identity", {id})}); }
  ValueId batch_norm(ValueId x, const char* scale, ValueId mean, ValueId variance) {
    const ValueId own = param(scale);
    return add("batch_norm", {x, own, handed_on(own), mean, variance});
  }
  ValueId input() { return graph.add_input("x", TensorType{DType::f32, {2, 4, 3, 3}}); }
  ir::Graph with_loss(ValueId y) {
    graph.add_output(add("reduce_sum", {y}, {{"keepdims", int64_t{0}}}), kLossOutput);
    graph.sort();
    return graph;
  }
};

bool names(const std::vector<std::string>& list, const char* name) {
  return std::find(list.begin(), list.end(), name) != list.end();
}

TEST(TrainingForm, TensorsBehindIdentitiesAreStates) {
  Network n;
  const ValueId mean = n.param("mean"), variance = n.param("variance");
  const ValueId y = n.batch_norm(n.input(), "scale", n.handed_on(mean), n.handed_on(variance));
  const TrainingForm form = training_form(n.with_loss(y), {});
  for (const char* name : {"mean", "variance", "scale"}) EXPECT_TRUE(names(form.states, name)) << name;
  ASSERT_EQ(form.params.size(), 1u);
  EXPECT_EQ(form.params[0].name, "scale");
  for (const ir::Node& node : form.graph.nodes()) EXPECT_NE(node.op_name(), "identity");
}

TEST(TrainingForm, SharedStatisticsAreRefusedByName) {
  Network n;
  const ValueId mean = n.param("merged_mean");
  const ValueId first = n.batch_norm(n.input(), "a", n.handed_on(mean), n.param("va"));
  const ValueId second = n.batch_norm(first, "b", n.handed_on(mean), n.param("vb"));
  try {
    training_form(n.with_loss(second), {});
    FAIL() << "two batch norms keep one mean";
  } catch (const base::Error& e) {
    EXPECT_NE(std::string(e.what()).find("merged_mean"), std::string::npos) << e.what();
    EXPECT_NE(std::string(e.what()).find("training mode"), std::string::npos) << e.what();
  }
}

TEST(TrainingForm, ABiasOfOneElementIsAWeightAndAScalarIsNone) {
  Network n;
  const ValueId bias = n.graph.add_param("head.bias", Tensor::zeros(DType::f32, {1}));
  const ValueId scale = n.graph.add_param("scale", Tensor::scalar<float>(2));
  const ValueId y = n.add("add", {n.add("mul", {n.input(), scale}), bias});
  const TrainingForm form = training_form(n.with_loss(y), {});
  EXPECT_EQ(form.states, std::vector<std::string>{"head.bias"});
  ASSERT_EQ(form.params.size(), 1u);
  EXPECT_EQ(form.params[0].dims, (tensor::Dims{1}));
}

TEST(TrainingForm, FrozenTensorsStayAndDropoutTrains) {
  Network n;
  const ValueId x = n.input();
  const ValueId table = n.handed_on(n.graph.add_param("table.inv_freq", Tensor::zeros(DType::f32, {3})));
  const ValueId y = n.add("add", {n.add("dropout", {n.add("mul", {x, table})}), n.handed_on(n.bias())});
  const TrainingForm form = training_form(n.with_loss(y), {"inv_freq"});
  EXPECT_EQ(form.states, std::vector<std::string>{"bias"});
  const auto trains = [](const ir::Node& node) { return node.op_name() == "dropout_train"; };
  EXPECT_TRUE(std::any_of(form.graph.nodes().begin(), form.graph.nodes().end(), trains));
}

std::string refusal(const ir::Graph& graph, const std::vector<std::string>& freeze) {
  try {
    training_form(graph, freeze);
  } catch (const base::Error& e) {
    return e.message();
  }
  return "none";
}

size_t count_nodes(const ir::Graph& graph, const char* op) {
  const auto nodes = graph.nodes();
  return static_cast<size_t>(
      std::count_if(nodes.begin(), nodes.end(), [&](const ir::Node& node) { return node.op_name() == op; }));
}

TEST(TrainingForm, ANormWithFrozenStatisticsStaysAsInInference) {
  Network n;
  const ValueId mean = n.handed_on(n.param("first.mean"));
  const ValueId first = n.batch_norm(n.input(), "first.scale", mean, n.param("first.var"));
  const ValueId second = n.batch_norm(first, "second.scale", n.param("second.mean"), n.param("second.var"));
  ir::Graph graph = n.with_loss(second);
  const std::vector<std::string> freeze{"first.mean", "first.var", "second.mean"};
  EXPECT_EQ(count_nodes(training_form(graph, freeze).graph, "batch_norm_train"), 2u);
  fix_frozen_norms(graph, freeze);
  const TrainingForm form = training_form(graph, freeze);
  EXPECT_EQ(count_nodes(form.graph, "batch_norm"), 1u);
  EXPECT_EQ(count_nodes(form.graph, "batch_norm_train"), 1u);
  EXPECT_EQ(count_nodes(form.graph, "ema_update"), 2u);
  for (const char* name : {"first.mean", "first.var"}) EXPECT_FALSE(names(form.states, name)) << name;
  for (const char* name : {"second.mean", "second.var"}) EXPECT_TRUE(names(form.states, name)) << name;
  ASSERT_EQ(form.params.size(), 2u);  // both scales
  for (const TrainedParam& p : form.params) EXPECT_TRUE(p.name.ends_with("scale")) << p.name;
}

TEST(TrainingForm, ANormThatTakesComputedStatisticsKeepsThem) {
  Network n;
  const ValueId x = n.input();
  const ValueId axes = n.graph.add_constant(Tensor::from<int64_t>({3}, {0, 2, 3}));
  const auto mean_of = [&](ValueId of) {
    return n.add("reduce_mean", {of, axes}, {{"keepdims", int64_t{0}}});
  };
  const ValueId y = n.batch_norm(x, "scale", mean_of(x), mean_of(n.add("mul", {x, x})));
  const TrainingForm form = training_form(n.with_loss(y), {});
  EXPECT_EQ(form.states, std::vector<std::string>{"scale"});
  EXPECT_EQ(count_nodes(form.graph, "batch_norm"), 1u);
}

TEST(TrainingForm, NothingToTrainIsRefused) {
  Network none, frozen;
  EXPECT_NE(refusal(none.with_loss(none.add("exp", {none.input()})), {}).find("no weight"),
            std::string::npos);
  const ir::Graph graph = frozen.with_loss(frozen.add("add", {frozen.input(), frozen.bias()}));
  EXPECT_EQ(refusal(graph, {}), "none");
  EXPECT_NE(refusal(graph, {"bias"}).find("model.freeze"), std::string::npos);
}

TEST(TrainingForm, WeightsOfOtherTypesAreRefusedByName) {
  Network n;
  const ValueId wide = n.graph.add_param("table64", Tensor::zeros(DType::f64, {4}));
  const ValueId cast = n.add("cast", {wide}, {{"to", int64_t{1}}});
  const ValueId x = n.graph.add_input("x", TensorType{DType::f32, {2, 4}});
  const ir::Graph graph = n.with_loss(n.add("add", {n.add("add", {x, cast}), n.bias()}));
  const std::string why = refusal(graph, {});
  EXPECT_NE(why.find("'table64' is f64[4]"), std::string::npos) << why;
  EXPECT_EQ(refusal(graph, {"table"}), "none");
}

TEST(TrainingForm, ConstantsThatProductsReadAreNamed) {
  ir::Graph g;
  const auto constant = [&](const char* name) {
    return g.add_constant(Tensor::zeros(DType::f32, {4, 4}), name);
  };
  const auto add = [&](const char* op, std::vector<ValueId> in) {
    return g.add1(ops::table().need(op), std::move(in));
  };
  const ValueId x = g.add_input("x", TensorType{DType::f32, {2, 4}});
  const ValueId turned = add("transpose", {constant("turned")});
  const ValueId y = add("matmul", {add("matmul", {add("matmul", {x, constant("w")}), turned}),
                                   g.add_param("trained", Tensor::zeros(DType::f32, {4, 4}))});
  const ValueId z = add("matmul", {add("add", {y, g.add_constant(Tensor::zeros(DType::f32, {2, 4}), "mask")}),
                                   constant("kept")});
  g.add_output(z, "z");
  g.sort();
  std::vector<std::string> found = constant_weights(g, {"kept"});
  std::sort(found.begin(), found.end());
  EXPECT_EQ(found, (std::vector<std::string>{"turned", "w"}));
}

const ir::OpDef& op(const char* name) { return ops::table().need(name); }

/// x * factor, where x [n, 2] is captured.
ir::GraphPtr product_with(const Tensor& factor, const char* name = "") {
  ir::Graph body;
  const ValueId x = body.add_input("x", {DType::f32, {Dim::symbol("n"), 2}});
  body.add_output(body.add1(op("mul"), {x, body.add_constant(factor, name)}, {}, "inside"), "y");
  return std::make_shared<const ir::Graph>(std::move(body));
}

const Tensor kTwo = Tensor::from<float>({2}, {2, 2});

ir::Attrs branches(const Tensor& yes, const Tensor& no, const char* name = "") {
  return {{"then_branch", product_with(yes, name)},
          {"else_branch", product_with(no, name)},
          {"captures", int64_t{1}}};
}

std::vector<std::string> params_of(const ir::Graph& graph) {
  std::vector<std::string> names;
  for (const ir::Value& v : graph.values()) {
    if (v.kind == ir::ValueKind::param) names.push_back(v.name);
  }
  return names;
}

TEST(KnownBranches, TheTakenBranchReadsTheParamsOutside) {
  ir::Graph g;
  const ValueId x = g.add_input("x", {DType::f32, {Dim::symbol("n"), 2}});
  const ValueId w = g.add_param("w", Tensor::from<float>({2}, {3, 5}));
  const ValueId condition = g.add_constant(Tensor::scalar(true));
  const ValueId y = g.add1(op("if"), {condition, x}, branches(g.value(w).data, kTwo), "choice");
  g.value(y).name = "chosen";
  g.add_output(g.add1(op("add"), {y, w}), "out");
  g.sort();
  EXPECT_EQ(open_known_branches(g), 1u);
  ir::verify(g);
  EXPECT_EQ(count_nodes(g, "if"), 0u);
  EXPECT_EQ(params_of(g), std::vector<std::string>{"w"});
  for (const ir::Node& node : g.nodes()) {
    if (node.op_name() != "mul") continue;
    EXPECT_EQ(g.value(node.out[0]).name, "chosen");
  }
  const Tensor out = ops::testing::run_graph(g, {Tensor::from<float>({1, 2}, {1, 2})})[0];
  EXPECT_EQ(out.to_doubles(), (std::vector<double>{6, 15}));
  EXPECT_EQ(open_known_branches(g), 0u);
}

TEST(KnownBranches, AWeightOfTheBranchItselfBecomesAParamOfAnUnusedName) {
  ir::Graph g;
  const ValueId x = g.add_input("w", {DType::f32, {Dim::symbol("n"), 2}});
  const ValueId condition = g.add_constant(Tensor::scalar(false));
  g.add_output(g.add1(op("if"), {condition, x}, branches(kTwo, kTwo, "w")), "out");
  g.sort();
  EXPECT_EQ(open_known_branches(g), 1u);
  ASSERT_EQ(params_of(g).size(), 1u);
  EXPECT_TRUE(params_of(g)[0].starts_with("w.")) << params_of(g)[0];
  ir::verify(g);
}

/// x [n, c] times w, squeezed as exporters write it: the branch depends on an extent, and so does the shape
/// of what follows.
ir::Graph squeezed_product() {
  ir::Graph g;
  const ValueId given = g.add_input("x", {DType::f32, {Dim::symbol("n"), Dim::symbol("c")}});
  const ValueId x = g.add1(op("mul"), {given, g.add_param("w", Tensor::from<float>({1}, {3}))});
  const auto squeezed = [](bool squeezes) {
    ir::Graph body;
    const ValueId in = body.add_input("x", {DType::f32, {Dim::symbol("n"), Dim::symbol("c")}});
    const ValueId axis = body.add_constant(Tensor::from<int64_t>({1}, {1}));
    const ValueId y = squeezes ? body.add1(op("squeeze"), {in, axis}) : body.add1(op("identity"), {in});
    body.add_output(y, "y");
    return ir::GraphPtr(std::make_shared<const ir::Graph>(std::move(body)));
  };
  const ValueId extents = g.add1(op("shape"), {x});
  const ValueId one = g.add_constant(Tensor::from<int64_t>({1}, {1}));
  const ValueId last = g.add1(op("gather"), {extents, one});
  const ValueId condition = g.add1(op("equal"), {last, one});
  const ValueId y =
      g.add1(op("if"), {condition, x},
             {{"then_branch", squeezed(true)}, {"else_branch", squeezed(false)}, {"captures", int64_t{1}}});
  g.add_output(g.add1(op("exp"), {y}), "out");
  g.sort();
  return g;
}

TEST(KnownBranches, ShapesDecideOnceTheyAreBound) {
  ir::Graph g = squeezed_product();
  EXPECT_EQ(open_known_branches(g), 0u);
  ir::Graph column = passes::bind_shapes(g, {{4, 1}}), wide = passes::bind_shapes(g, {{4, 3}});
  EXPECT_EQ(open_known_branches(column), 1u);
  EXPECT_EQ(open_known_branches(wide), 1u);
  EXPECT_EQ(column.type(column.outputs()[0]).shape, tensor::Shape({4}));
  EXPECT_EQ(wide.type(wide.outputs()[0]).shape, tensor::Shape({4, 3}));
}

TEST(KnownBranches, AStepIsDifferentiatedThroughThem) {
  ir::Graph g = squeezed_product();
  g.add_output(g.add1(op("reduce_sum"), {g.outputs()[0]}, {{"keepdims", int64_t{0}}}), kLossOutput);
  g.sort();
  base::SharedCache packs;
  StepLowering lowering(training_form(g, {}), {{}, {}, {.threads = 1}}, packs);
  const StepGraph step = lowering.make_graph({{{4, 1}}, 1, StepPart::last});
  EXPECT_EQ(count_nodes(step.graph, "if"), 0u);
  EXPECT_TRUE(lowering.form().params[0].is_reached);
}

TEST(KnownBranches, WeightsInSubgraphsThatStayAreRefusedByName) {
  ir::Graph g;
  const ValueId x = g.add_input("x", {DType::f32, {Dim::symbol("n"), 2}});
  const ValueId condition = g.add_input("condition", {DType::boolean, tensor::Shape{}});
  const ValueId w = g.add_param("layer.weight", Tensor::from<float>({2}, {3, 5}));
  const ValueId y = g.add1(op("if"), {condition, x}, branches(g.value(w).data, kTwo), "choice");
  g.add_output(g.add1(op("add"), {y, w}), "out");
  g.sort();
  EXPECT_EQ(open_known_branches(g), 0u);
  EXPECT_NO_THROW(refuse_weights_in_bodies(g, {"layer"}));
  try {
    refuse_weights_in_bodies(g, {"other"});
    FAIL() << "a weight inside of a branch was accepted";
  } catch (const base::Error& e) {
    EXPECT_EQ(e.code(), base::ErrorCode::unsupported);
    EXPECT_NE(e.message().find("layer.weight"), std::string::npos) << e.message();
    EXPECT_NE(e.message().find("choice"), std::string::npos) << e.message();
  }
}

}  // namespace
}  // namespace trireme::lower
