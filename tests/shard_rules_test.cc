// Tests networks that are split over tensor-parallel ranks by name and by structure: what is split, how often
// ranks communicate, and losses and gradients compared with the whole network.
#include "passes/partition/shard_rules.h"

#include <gtest/gtest.h>

#include "model/loss.h"
#include "model/onnx/export.h"
#include "model/onnx/import.h"
#include "model/zoo/bert.h"
#include "model/zoo/gpt2.h"
#include "model/zoo/llama.h"
#include "model/zoo/mlp.h"
#include "model/zoo/vit.h"
#include "passes/lists/lists.h"
#include "tests/partition_trial.h"

namespace trireme {
namespace {

using ir::ValueId;
using passes::Strategy;
using tensor::Dims;
using tensor::DType;
using tensor::Tensor;

/// A network with its loss, bound shapes and gradients; its params are states.
struct Network {
  ir::Graph loss, step_forward, step;
  std::map<std::string, Tensor> feeds;

  /// `inputs` gives shapes by name; labels take the shape of the logits. Integer inputs are below `limit`.
  Network(model::Model m, const std::map<std::string, Dims>& inputs, int64_t limit, bool renames = false) {
    model::add_loss(m.graph);
    ir::Graph& g = m.graph;
    for (size_t i = 0; i < g.values().size(); ++i) {
      const auto id = ValueId(static_cast<uint32_t>(i));
      ir::Value& v = g.value(id);
      if (v.kind != ir::ValueKind::param) continue;
      if (renames) v.name = base::concat("w", i);
      feeds[v.name] = v.data;
      g.make_state(id);
    }
    loss = g;
    if (passes::to_training(g) > 0) g.sort();
    std::vector<Dims> shapes;
    for (ValueId id : g.inputs()) shapes.push_back(shape_of(g.value(id), inputs));
    step = passes::bind_shapes(g, shapes);
    passes::run_passes(passes::forward_passes(), step, {.verify = true});
    step_forward = step;
    for (ValueId id : step.inputs()) feed(step.value(id), limit);
    std::vector<ValueId> weights;
    for (size_t i = 0; i < step.values().size(); ++i) {
      if (step.values()[i].kind == ir::ValueKind::state) weights.push_back(ValueId(static_cast<uint32_t>(i)));
    }
    for (const auto& p : passes::differentiate(step, step.outputs()[0], weights))
      step.add_output(p.gradient, step.value(p.param).name + ".grad");
    feeds[passes::kLossWeightInput] = Tensor::scalar(0.1f);
    step.sort();
  }

  static Dims shape_of(const ir::Value& v, const std::map<std::string, Dims>& inputs) {
    const auto given = inputs.find(v.name);
    return given != inputs.end() ? given->second : v.type.shape.to_dims();
  }

  void feed(const ir::Value& v, int64_t limit) {
    const Dims dims = v.type.shape.to_dims();
    if (v.name == passes::kRngInput) {
      feeds[v.name] = Tensor::from<int64_t>({3}, {5, 2, 0});
    } else if (v.type.dtype == DType::i64) {
      Tensor t = Tensor::zeros(DType::i64, dims);
      const auto at = t.mutable_data<int64_t>();
      for (size_t i = 0; i < at.size(); ++i)
        at[i] = v.name == "attention_mask" ? int64_t{i % 7 != 6} : int64_t(i * 7 + 3) % limit;
      feeds[v.name] = t;
    } else {
      feeds[v.name] = ops::testing::random_tensor(v.type.dtype, dims, -1, 1, 3);
    }
  }

  /// Compares the step on all ranks with the step on one rank; returns a rank's graph.
  ir::Graph expect_same(Strategy strategy, double tolerance = 3e-4) const {
    strategy = passes::choose_kv_ranks(step_forward, strategy);
    passes::Partitioning how{.mesh = strategy.mesh(), .coordinates = {}};
    how.placed = passes::place_params(step_forward, strategy);
    for (const auto& [name, shard] : how.placed) how.outputs[name + ".grad"] = shard;
    const ir::Graph rank = tests::expect_same(step, how, feeds, tolerance);
    return rank;
  }

  std::string text(Strategy strategy) const {
    strategy = passes::choose_kv_ranks(step_forward, strategy);
    return passes::to_text(passes::place_weights(loss, strategy), strategy.mesh());
  }
};

size_t count(const ir::Graph& g, std::string_view op) { return tests::count(g, op); }

model::zoo::Gpt2Config gpt2_config() {
  model::zoo::Gpt2Config c = model::zoo::Gpt2Config::nano();
  c.width = 24;
  c.layers = 2;
  c.positions = 8;
  c.has_bias = true;
  return c;
}

Network gpt2(bool has_bias = true, double dropout = 0, bool renames = false) {
  model::zoo::Gpt2Config c = gpt2_config();
  c.has_bias = has_bias;
  c.dropout = dropout;
  model::RandomParams params(1);
  return Network(model::zoo::gpt2(c, params), {{"input_ids", {2, 6}}, {"labels", {2, 6}}}, 65, renames);
}

model::zoo::LlamaConfig llama_config(int64_t kv_heads, bool is_tied) {
  model::zoo::LlamaConfig c;
  c.vocabulary = 37;
  c.positions = 16;
  c.width = 24;
  c.layers = 2;
  c.heads = 4;
  c.kv_heads = kv_heads;
  c.inner = 40;
  c.is_tied = is_tied;
  return c;
}

Network llama(int64_t kv_heads, bool is_tied) {
  model::RandomParams params(1);
  return Network(model::zoo::llama(llama_config(kv_heads, is_tied), params),
                 {{"input_ids", {2, 6}}, {"labels", {2, 6}}}, 37);
}

model::zoo::BertConfig bert_config(model::zoo::BertHead head) {
  model::zoo::BertConfig c;
  c.vocabulary = 45;
  c.positions = 8;
  c.width = 24;
  c.layers = 2;
  c.heads = 4;
  c.classes = 4;
  c.head = head;
  return c;
}

Network bert(model::zoo::BertHead head) {
  const Dims tokens{2, 6};
  const Dims labels = head == model::zoo::BertHead::classification ? Dims{2} : tokens;
  const int64_t limit = head == model::zoo::BertHead::classification ? 2 : 45;
  model::RandomParams params(1);
  return Network(
      model::zoo::bert(bert_config(head), params),
      {{"input_ids", tokens}, {"attention_mask", tokens}, {"token_type_ids", tokens}, {"labels", labels}},
      limit);
}

Network vit() {
  model::zoo::VitConfig c = model::zoo::VitConfig::tiny();
  c.size = 8;
  c.width = 24;
  c.layers = 2;
  model::RandomParams params(1);
  return Network(model::zoo::vit(c, params), {{"image", {2, 1, 8, 8}}, {"labels", {2}}}, 10);
}

TEST(ShardRules, Gpt2) {
  for (const bool has_bias : {true, false}) {
    const Network n = gpt2(has_bias);
    for (int ranks : {2, 4}) {
      const ir::Graph g = n.expect_same({.tp = ranks});
      EXPECT_EQ(count(g, "all_gather"), 0u);
      // Two for each layer and direction; embedding, maxima and sums of the loss; gradient before the head.
      EXPECT_EQ(count(g, "all_reduce"), 2u * 4 + 4) << ir::print(g);
    }
  }
  const std::string text = gpt2().text({.tp = 2});
  for (const char* line :
       {"transformer.wte.weight [65,24] @tp:S(0): scores of the vocabulary, by name (GPT-2)\n",
        "transformer.wpe.weight [8,24]: whole\n",
        "transformer.h.{0..1}.attn.c_attn.weight [24,72] @tp:S(1/3): queries, keys and values of 4 heads, by "
        "name",
        "transformer.h.{0..1}.attn.c_attn.bias [72] @tp:S(0/3): queries",
        "transformer.h.{0..1}.attn.c_proj.weight [24,24] @tp:S(0): after 4 heads",
        "transformer.h.{0..1}.attn.c_proj.bias [24]: whole\n",
        "transformer.h.{0..1}.mlp.c_fc.weight [24,96] @tp:S(1): before gelu",
        "transformer.h.{0..1}.mlp.c_fc.bias [96] @tp:S(0): before gelu",
        "transformer.h.{0..1}.mlp.c_proj.weight [96,24] @tp:S(0): after gelu"})
    EXPECT_NE(text.find(line), std::string::npos) << line << "\n" << text;
}

TEST(ShardRules, DropoutDrawsWhatOneRankDraws) {
  const Network n = gpt2(true, 0.2);
  n.expect_same({.tp = 2});
  n.expect_same({.tp = 4});
}

TEST(ShardRules, ByStructureAlone) {
  const Network n = gpt2(true, 0, /*renames=*/true);
  const ir::Graph g = n.expect_same({.tp = 2});
  EXPECT_EQ(count(g, "all_reduce"), 2u * 4 + 4);
  Strategy off{.tp = 2};
  off.automatic = false;
  EXPECT_TRUE(passes::place_params(n.loss, off).empty());
}

TEST(ShardRules, LlamaWithFewerKeyHeadsThanRanks) {
  for (const auto& [kv, tied] : {std::pair<int64_t, bool>{4, false}, {2, true}, {1, false}}) {
    const Network n = llama(kv, tied);
    for (int ranks : {2, 4}) {
      const Strategy s = passes::choose_kv_ranks(n.loss, {.tp = ranks});
      EXPECT_EQ(s.kv_ranks, std::min<int64_t>(ranks, kv));
      const ir::Graph g = n.expect_same({.tp = ranks});
      EXPECT_EQ(count(g, "all_gather"), 0u) << ir::print(g);
    }
  }
}

TEST(ShardRules, BertAndVit) {
  for (const auto head : {model::zoo::BertHead::masked_lm, model::zoo::BertHead::classification}) {
    const ir::Graph g = bert(head).expect_same({.tp = 2});
    EXPECT_EQ(count(g, "all_gather"), 0u) << ir::print(g);
  }
  vit().expect_same({.tp = 2});
}

/// The model as imported from an ONNX file: attention and norms in ONNX's forms, names without meaning.
model::Model imported(const model::Model& m) {
  const auto bytes = std::make_shared<std::string>(model::onnx::export_onnx(m.graph));
  return model::onnx::import_onnx(*bytes, bytes, "");
}

TEST(ShardRules, ImportedGraphsByStructure) {
  model::RandomParams params(1);
  const std::map<std::string, Dims> tokens{
      {"input_ids", {2, 6}}, {"attention_mask", {2, 6}}, {"token_type_ids", {2, 6}}, {"labels", {2, 6}}};
  const auto splits = [](const Network& n) {
    const Strategy s = passes::choose_kv_ranks(n.step_forward, {.tp = 2});
    return passes::place_params(n.step_forward, s).size();
  };
  const Network gpt(imported(model::zoo::gpt2(gpt2_config(), params)), tokens, 65, true);
  EXPECT_EQ(splits(gpt), 1 + 2u * 6);
  gpt.expect_same({.tp = 2});
  const Network llama(imported(model::zoo::llama(llama_config(2, true), params)), tokens, 37, true);
  EXPECT_EQ(splits(llama), 1 + 2u * 7);
  llama.expect_same({.tp = 2});
  llama.expect_same({.tp = 4});
  const Network bert(imported(model::zoo::bert(bert_config(model::zoo::BertHead::masked_lm), params)), tokens,
                     45, true);
  EXPECT_EQ(splits(bert), 2 + 2u * 6);
  bert.expect_same({.tp = 2});
}

TEST(ShardRules, Classifier) {
  model::zoo::MlpConfig c;
  c.size = 4;
  c.hidden = {12, 10, 8};
  c.classes = 6;
  model::RandomParams params(1);
  const Network n(model::zoo::mlp(c, params), {{"image", {3, 1, 4, 4}}, {"labels", {3}}}, 6);
  n.expect_same({.tp = 2});
  EXPECT_EQ(n.text({.tp = 2}),
            "fc1.weight [12,16] @tp:S(0): before relu, found in the graph\n"
            "fc1.bias [12] @tp:S(0): before relu, found in the graph\n"
            "fc2.weight [10,12] @tp:S(1): after relu, found in the graph\n"
            "fc2.bias [10]: whole\n"
            "fc3.weight [8,10] @tp:S(0): before relu, found in the graph\n"
            "fc3.bias [8] @tp:S(0): before relu, found in the graph\n"
            "head.weight [6,8] @tp:S(1): after relu, found in the graph\n"
            "head.bias [6]: whole\n");
  // The 12 and 8 units between the layers of the pairs divide by 4; 8 do not divide by 3.
  EXPECT_EQ(n.text({.tp = 4}), n.text({.tp = 2}));
  n.expect_same({.tp = 4});
  EXPECT_EQ(n.text({.tp = 3}),
            "fc1.weight [12,16] @tp:S(0): before relu, found in the graph\n"
            "fc1.bias [12] @tp:S(0): before relu, found in the graph\n"
            "fc2.weight [10,12] @tp:S(1): after relu, found in the graph\n"
            "fc2.bias [10]: whole\n"
            "fc3.weight [8,10]: whole: 'fc3.weight' [8,10] has 8 columns, which 3 ranks do not divide\n"
            "fc3.bias [8]: whole: 'fc3.weight' [8,10] has 8 columns, which 3 ranks do not divide\n"
            "head.weight [6,8]: whole: 'fc3.weight' [8,10] has 8 columns, which 3 ranks do not divide\n"
            "head.bias [6]: whole\n");
  n.expect_same({.tp = 3});
}

TEST(ShardRules, Refusals) {
  const auto message = [](const Network& n, Strategy s) -> std::string {
    try {
      passes::place_params(n.loss, passes::choose_kv_ranks(n.loss, s));
    } catch (const base::Error& e) {
      return e.what();
    }
    return "accepted";
  };
  EXPECT_EQ(message(gpt2(), {.tp = 3}),
            "tensor parallel: 'transformer.h.0.attn.c_attn.weight' [24,72] has 4 heads, which 3 ranks do not "
            "divide; "
            "choose another tp or a rule 'transformer.h.0.attn.c_attn.weight:whole'");
  EXPECT_EQ(
      message(llama(2, true), {.tp = 8}),
      "tensor parallel: 'model.layers.0.self_attn.o_proj.weight' [24,24] has 4 heads, which 8 ranks do not "
      "divide; choose another tp or a rule 'model.layers.0.self_attn.o_proj.weight:whole'");
  EXPECT_EQ(message(gpt2(), {.tp = 2, .rules = {"*c_fc.weight:tp:1/5"}}),
            "shard rule '*c_fc.weight:tp:1/5': dimension 1 of 'transformer.h.0.mlp.c_fc.weight' [24,96] in 5 "
            "sections does not divide over 2 ranks");
  EXPECT_EQ(message(gpt2(), {.tp = 2, .rules = {"nothing:tp:1"}}),
            "shard rule 'nothing:tp:1' fits no weight");
  EXPECT_EQ(
      message(gpt2(), {.tp = 2, .rules = {"c_fc.weight:tp"}}),
      "a shard rule is pattern:axis:dim, pattern:axis:dim/sections or pattern:whole, not 'c_fc.weight:tp'");
}

}  // namespace
}  // namespace trireme
