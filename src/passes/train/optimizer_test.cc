// The optimizer pass: the groups, states and nodes that it adds, and the effect of a step on the states.
#include "passes/train/optimizer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>

#include "ir/updates.h"
#include "ops/table.h"
#include "passes/name_match.h"

namespace trireme::passes {
namespace {

using ir::ValueId;
using tensor::DType;
using tensor::Shape;
using tensor::Tensor;

/// A graph whose "gradients" are inputs and whose parameters are states; embed is read by a gather.
struct Model {
  ir::Graph graph;
  std::vector<ParamGradient> gradients;
  std::vector<std::pair<std::string, tensor::TensorType>> params;  // sorting changes ids

  Model() {
    const auto param = [&](const std::string& name, tensor::Dims dims) {
      const tensor::TensorType type{DType::f32, Shape::of(dims)};
      const ValueId state = graph.add_state(name, type);
      params.emplace_back(name, type);
      gradients.push_back({state, graph.add_input("d_" + name, type)});
      return state;
    };
    const ValueId table = param("tokens.weight", {4, 2});
    param("block.linear.weight", {2, 3});
    param("block.linear.bias", {3});
    param("lm_head.weight", {4, 2});
    const ValueId ids = graph.add_input("ids", {DType::i64, {2}});
    graph.add_output(graph.add1(ops::table().need("gather"), {table, ids}), "rows");
  }
};

using Store = std::map<std::string, Tensor>;

/// Runs the nodes of a sorted graph; update ops change the states in `store`.
std::vector<Tensor> run(const ir::Graph& g, Store& store) {
  base::ThreadPool pool(2);
  std::vector<Tensor> value(g.values().size());
  for (size_t i = 0; i < value.size(); ++i) {
    const ir::Value& v = g.values()[i];
    value[i] = v.kind == ir::ValueKind::computed ? Tensor() : v.data.defined() ? v.data : store.at(v.name);
  }
  for (const ir::Node& node : g.nodes()) {
    std::vector<Tensor> in;
    for (ValueId id : node.in) in.push_back(id == ir::kNoValue ? Tensor() : value[ir::index(id)]);
    const std::vector<Tensor> out = ops::evaluate(*node.op, node.attrs, in, node.out.size(), pool);
    for (size_t i = 0; i < out.size(); ++i)
      if (node.out[i] != ir::kNoValue) value[ir::index(node.out[i])] = out[i];
    for (const ir::StateUpdate& u : ir::updates_of(node))
      store[g.value(node.in[u.operand]).name] = out[u.result];
  }
  std::vector<Tensor> results;
  for (ValueId id : g.outputs()) results.push_back(value[ir::index(id)]);
  return results;
}

Store store_of(const Model& m, const OptimizerPlan& plan) {
  Store store;
  for (const auto& [name, type] : m.params) {
    Tensor ones = Tensor::zeros(DType::f32, type.shape.to_dims());
    for (float& x : ones.mutable_data<float>()) x = 1;
    store[name] = ones;
    store["d_" + name] = ones.clone();
  }
  for (const OptimizerState& s : plan.states)
    store[s.name] =
        s.copy_of.empty() ? Tensor::zeros(s.type.dtype, s.type.shape.to_dims()) : store.at(s.copy_of).clone();
  store["ids"] = Tensor::from<int64_t>({2}, {0, 1});
  store[kLrInput] = Tensor::scalar(0.5f);
  store[kStepInput] = Tensor::scalar(int64_t{1});
  store[kGradScaleInput] = Tensor::scalar(1.0f);
  store[kNormLimitInput] = Tensor::scalar(1e30f);
  return store;
}

size_t count(const ir::Graph& g, std::string_view op) {
  size_t n = 0;
  for (const ir::Node& node : g.nodes()) n += node.op != nullptr && node.op_name() == op;
  return n;
}

TEST(Optimizer, VectorsAreNotDecayedByDefault) {
  Model m;
  const OptimizerPlan plan = add_optimizer(m.graph, m.gradients, {.clip_norm = 1});
  EXPECT_EQ(plan.text,
            "optimizer adamw, beta1 0.9, beta2 0.999, epsilon 1e-08\n"
            "gradients: norm clipped at 1; not finite: the update is skipped\n"
            "group 1: adamw, weight decay 0.01: 3 parameters, 22 elements\n"
            "  tokens.weight [4,2]\n"
            "  block.linear.weight [2,3]\n"
            "  lm_head.weight [4,2]\n"
            "group 2: adamw, no weight decay: 1 parameters, 3 elements\n"
            "  block.linear.bias [3]\n"
            "states: 8, 200 bytes\n");
  m.graph.add_output(plan.grad_norm, "grad_norm");
  m.graph.add_output(plan.skipped, "skipped");
  m.graph.sort();
  ir::verify(m.graph);
  EXPECT_EQ(count(m.graph, "adam_update"), 2u);
  Store store = store_of(m, plan);
  const std::vector<Tensor> out = run(m.graph, store);
  EXPECT_FLOAT_EQ(out[1].data<float>()[0], 5.0f);  // 25 gradients of 1
  EXPECT_FALSE(out[2].data<bool>()[0]);
  // Adam's first step has size lr for any gradient; decay subtracts lr * 0.01 of the weight.
  EXPECT_NEAR(store.at("block.linear.bias").data<float>()[0], 0.5, 1e-6);
  EXPECT_NEAR(store.at("block.linear.weight").data<float>()[0], 1 - 0.005 - 0.5, 1e-6);
  EXPECT_NEAR(store.at("tokens.weight.adam_m").data<float>()[0], 0.1 / 5, 1e-7);
}

TEST(Optimizer, MuonTakesHiddenMatricesOnly) {
  Model m;
  const OptimizerPlan plan = add_optimizer(m.graph, m.gradients, {.kind = OptimizerKind::muon});
  m.graph.sort();
  EXPECT_EQ(count(m.graph, "muon_update"), 1u);
  EXPECT_NE(plan.text.find("muon, weight decay 0.1: 1 parameters, 6 elements\n  block.linear.weight"),
            std::string::npos)
      << plan.text;
  EXPECT_NE(plan.text.find("adamw, weight decay 0.01: 2 parameters"), std::string::npos) << plan.text;
  std::vector<std::string> names;
  for (const OptimizerState& s : plan.states) names.push_back(s.name);
  EXPECT_NE(std::find(names.begin(), names.end(), "block.linear.weight.momentum"), names.end());
  EXPECT_NE(std::find(names.begin(), names.end(), "lm_head.weight.adam_m"), names.end());
  Store store = store_of(m, plan);
  run(m.graph, store);
}

TEST(Optimizer, EveryKindRunsAndASkipChangesNothing) {
  for (int kind = 0; kind <= static_cast<int>(OptimizerKind::muon); ++kind) {
    for (float limit : {1e30f, 0.0f}) {
      Model m;
      const OptimizerOptions options{.kind = static_cast<OptimizerKind>(kind), .ema_keep = 0.9};
      const OptimizerPlan plan = add_optimizer(m.graph, m.gradients, options, {.has_limits = true});
      m.graph.sort();
      ir::verify(m.graph);
      Store store = store_of(m, plan);
      store[kNormLimitInput] = Tensor::scalar(limit);
      const Store before = store;
      run(m.graph, store);
      for (const auto& [name, type] : m.params) {
        EXPECT_EQ(store.at(name).same_as(before.at(name)), limit == 0) << plan.text;
        EXPECT_EQ(store.at(name + ".ema").same_as(before.at(name + ".ema")), limit == 0) << name;
      }
      for (const OptimizerState& s : plan.states) {
        EXPECT_EQ(store.at(s.name).type(), s.type);
        EXPECT_TRUE(limit > 0 || store.at(s.name).same_as(before.at(s.name))) << s.name;
      }
    }
  }
}

TEST(Optimizer, AnInfiniteLossOfFiniteGradientsChangesNothing) {
  for (float loss : {2.0f, std::numeric_limits<float>::infinity()}) {
    Model m;
    const ValueId lost = m.graph.add_input("loss", {DType::f32, Shape{}});
    const OptimizerPlan plan = add_optimizer(m.graph, m.gradients, {}, {.loss = lost});
    EXPECT_EQ(plan.text.find("spikes"), std::string::npos);
    m.graph.sort();
    ir::verify(m.graph);
    Store store = store_of(m, plan);
    store["loss"] = Tensor::scalar(loss);
    const Store before = store;
    run(m.graph, store);
    for (const auto& [name, type] : m.params)
      EXPECT_EQ(store.at(name).same_as(before.at(name)), std::isinf(loss)) << name;
  }
}

TEST(Optimizer, AStageWithoutTrainedWeightsComputesTheNormWithTheOthers) {
  for (int stages : {1, 2}) {
    Model m;
    m.graph.mesh = tensor::MeshShape({{"pp", stages}});
    const OptimizerPlan plan = add_optimizer(m.graph, {}, {.ema_keep = 0.9}, {.coordinates = {0}});
    EXPECT_EQ(plan.grad_norm != ir::kNoValue, stages > 1);
    EXPECT_EQ(plan.skipped != ir::kNoValue, stages > 1);
    EXPECT_EQ(count(m.graph, "all_gather"), stages > 1 ? 1u : 0u);
    EXPECT_TRUE(plan.states.empty());
  }
}

TEST(Optimizer, AveragesFollowTheUpdatedWeights) {
  Model m;
  const OptimizerOptions options{
      .kind = OptimizerKind::sgd, .momentum = 0, .ema_keep = 0.75, .ema_ramp = false};
  const OptimizerPlan plan = add_optimizer(m.graph, m.gradients, options);
  EXPECT_EQ(plan.states.size(), 4u);
  EXPECT_EQ(plan.states[0].copy_of, "tokens.weight");
  m.graph.sort();
  Store store = store_of(m, plan);
  run(m.graph, store);
  EXPECT_FLOAT_EQ(store.at("tokens.weight").data<float>()[0], 0.5f);
  EXPECT_FLOAT_EQ(store.at("tokens.weight.ema").data<float>()[0], 0.75f + 0.25f * 0.5f);
}

TEST(Optimizer, GroupsOverride) {
  Model m;
  const OptimizerOptions options{
      .groups = {"*.bias weight_decay=0.5 lr_scale=2", "block kind=sgd", "lm_head lr_scale=0.1"}};
  const OptimizerPlan plan = add_optimizer(m.graph, m.gradients, options);
  for (const char* line : {"adamw, weight decay 0.01: 1 parameters, 8 elements\n  tokens.weight",
                           "sgd, no weight decay: 1 parameters, 6 elements\n  block.linear.weight",
                           "adamw, weight decay 0.5, learning rate x 2: 1 parameters, 3 elements\n",
                           "adamw, weight decay 0.01, learning rate x 0.1: 1 parameters, 8 elements\n"})
    EXPECT_NE(plan.text.find(line), std::string::npos) << line << "\nin\n" << plan.text;
}

TEST(Optimizer, SaysWhatIsWrongWithAGroup) {
  const auto message = [](std::vector<std::string> groups) -> std::string {
    Model m;
    try {
      add_optimizer(m.graph, m.gradients, {.groups = std::move(groups)});
    } catch (const base::Error& e) {
      return e.what();
    }
    return "";
  };
  EXPECT_NE(message({"nowhere lr_scale=1"}).find("names no parameter"), std::string::npos);
  EXPECT_NE(message({"* lr=1"}).find("unknown key 'lr'"), std::string::npos);
  EXPECT_NE(message({"* lr_scale=x"}).find("not a number"), std::string::npos);
  for (const char* value : {"-1", "inf", "nan", "1e40"}) {
    for (const char* key : {"* lr_scale=", "* weight_decay="})
      EXPECT_NE(message({base::concat(key, value)}).find("from 0 to"), std::string::npos) << key << value;
  }
  EXPECT_NE(message({"* kind=best"}).find("no kind 'best'"), std::string::npos);
}

TEST(Optimizer, PatternsMatch) {
  EXPECT_TRUE(name_matches("bias", "a.bias.b"));
  EXPECT_FALSE(name_matches("*bias", "a.bias.b"));
  EXPECT_TRUE(name_matches("*bias*", "a.bias.b"));
  EXPECT_TRUE(name_matches("a*.b", "a.b.b"));
  EXPECT_FALSE(name_matches("a*.b", "a.b.c"));
  EXPECT_TRUE(name_matches("*", ""));
}

TEST(Optimizer, OptionsHaveNames) {
  OptimizerOptions options;
  base::OptionList list(options);
  list.parse_json(base::parse_json(R"({"kind": "lamb", "clip_norm": 1, "groups": ["bias lr_scale=2"]})"));
  EXPECT_EQ(options.kind, OptimizerKind::lamb);
  EXPECT_EQ(options.clip_norm, 1);
  EXPECT_THROW(list.parse_json(base::parse_json(R"({"clip": 1})")), base::Error);
  for (const char* text : {R"({"beta1": 1})", R"({"beta2": 1})"})
    EXPECT_THROW(list.parse_json(base::parse_json(text)), base::Error) << text;
}

}  // namespace
}  // namespace trireme::passes
