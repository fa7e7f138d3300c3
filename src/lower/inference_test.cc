// Lowering for inference needs no content of weights: from types alone it gives the same program.
#include "lower/inference.h"

#include <gtest/gtest.h>

#include "base/machine/memory.h"
#include "model/hf/forms/test_configs.h"
#include "model/params.h"
#include "model/zoo/zoo.h"
#include "passes/lists/lists.h"
#include "passes/partition/shard_rules.h"
#include "tensor/absent.h"

namespace trireme::lower {
namespace {

using passes::Precision;
using passes::Strategy;
using passes::WeightBits;
using tensor::Dims;

struct NetworkCase {
  const char* name;
  std::vector<std::string> options;
  std::vector<Dims> shapes;
};

ir::Graph graph_of(const NetworkCase& network, model::ParamSource& params) {
  ir::Graph graph = model::zoo::build(network.name, network.options, &params).graph;
  graph.sort();
  passes::run_passes(passes::prepare_passes(), graph);
  return graph;
}

/// The program of the strategy's last rank, whose parts may be smaller.
std::shared_ptr<const compile::Program> lowered(const ir::Graph& graph, const std::vector<Dims>& shapes,
                                                const Strategy& given, base::SharedCache& packs) {
  const Strategy strategy = passes::choose_kv_ranks(graph, given);
  RankPart part(strategy, strategy.world() - 1);
  ir::Graph local = part.of(passes::bind_shapes(graph, shapes)).graph;
  return lower_inference(std::move(local), {.compile = {.threads = 2}, .strategy = strategy}, packs, graph)
      .program;
}

std::string text_of(const compile::Program& p) { return compile::print_steps(p) + compile::print_memory(p); }

std::vector<Strategy> strategies(const NetworkCase& network) {
  std::vector<Strategy> all;
  for (const Precision p : {Precision::f32, Precision::bf16, Precision::f16, Precision::fp8})
    all.push_back({.precision = {.compute = p}});
  for (const WeightBits bits : {WeightBits::int8, WeightBits::int4, WeightBits::q4_0, WeightBits::q8_0})
    all.push_back({.weights = {.weights = bits, .weight_group = 32, .least_elements = 1}});
  const std::string name = network.name;
  if (name == "gpt2" || name == "llama") {
    for (Strategy s : {Strategy{.tp = 2}, Strategy{.pp = 2}, Strategy{.tp = 2, .pp = 2}}) {
      all.push_back(s);
      s.precision.compute = Precision::bf16;
      all.push_back(s);
      s.precision.compute = Precision::f32;
      s.weights = {.weights = WeightBits::int8, .weight_group = 32, .least_elements = 1};
      all.push_back(s);
    }
  }
  return all;
}

TEST(LowerInference, GivesTheSameProgramsFromTypesAsFromNumbers) {
  const NetworkCase networks[] = {
      {"gpt2", {"vocabulary=96", "positions=16", "width=64", "layers=2", "heads=4"}, {{2, 8}}},
      {"llama", {"vocabulary=96", "width=64", "layers=2", "heads=4", "kv_heads=2", "inner=128"}, {{2, 8}}},
      {"vit", {"size=32", "patch=8", "width=64", "layers=2", "heads=4", "classes=10"}, {{2, 3, 32, 32}}},
      {"resnet18", {"size=64", "classes=10"}, {{2, 3, 64, 64}}},
      {"cnn", {}, {}},
      {"mlp", {}, {}},
  };
  for (NetworkCase network : networks) {
    model::RandomParams random(0);
    model::AbsentParams absent;
    const ir::Graph numbers = graph_of(network, random), types = graph_of(network, absent);
    if (network.shapes.empty()) {
      for (const ir::ValueId id : types.inputs()) {
        Dims dims;
        for (const tensor::Dim& d : types.type(id).shape.dims())
          dims.push_back(d.is_static() ? d.value() : 2);
        network.shapes.push_back(dims);
      }
    }
    size_t without = 0;
    for (const ir::Value& v : types.values())
      without += v.data.defined() && tensor::is_absent(v.data) ? 1 : 0;
    EXPECT_GT(without, 0u) << network.name;
    for (const Strategy& strategy : strategies(network)) {
      base::SharedCache packs, other;
      const auto plan = lowered(types, network.shapes, strategy, packs);
      EXPECT_EQ(text_of(*plan), text_of(*lowered(numbers, network.shapes, strategy, other)))
          << network.name << ", precision " << static_cast<int>(strategy.precision.compute) << ", weights "
          << static_cast<int>(strategy.weights.weights) << ", tp " << strategy.tp << ", pp " << strategy.pp;
    }
  }
}

TEST(LowerInference, ALlamaOf70BillionParametersTakesNoMemoryForThem) {
  const NetworkCase llama{"llama",
                          {"vocabulary=128256", "width=8192", "layers=80", "heads=64", "kv_heads=8",
                           "inner=28672", "is_tied=false"},
                          {{1, 128}}};
  const int64_t before = base::resident_bytes();
  model::AbsentParams absent;
  const ir::Graph graph = graph_of(llama, absent);
  base::SharedCache packs;
  const auto plan = lowered(graph, llama.shapes, {.tp = 8, .precision = {.compute = Precision::bf16}}, packs);
  EXPECT_GT(plan->memory.constant_bytes, int64_t{15} << 30);  // an eighth of 140 GB
  EXPECT_LT(base::resident_bytes() - before, int64_t{512} << 20);
}

TEST(LowerInference, ARankHoldsItsShareOfTheExpertsWhole) {
  for (base::Json config : model::hf::form_configs({.width = 32, .inner = 64})) {
    if (!config.contains("num_local_experts") && !config.contains("num_experts")) continue;
    config.set(config.contains("num_experts") ? "num_experts" : "num_local_experts", 4);
    model::RandomParams params(3);
    const model::hf::Form form = model::hf::read_form(*model::hf::find_form(config), config);
    ir::Graph graph = model::zoo::decoder(form.decoder, params).graph;
    graph.sort();
    passes::run_passes(passes::prepare_passes(), graph);
    const auto held = [&](const Strategy& given, int rank) {
      RankPart part(passes::choose_kv_ranks(graph, given), rank);
      ir::Graph local = part.of(passes::bind_shapes(graph, {{1, 8}})).graph;
      int64_t bytes = 0;
      for (const ir::Value& v : local.values()) {
        const bool is_expert = v.name.find(".experts.") != std::string::npos;
        if (!is_expert || v.kind != ir::ValueKind::param) continue;
        bytes += v.data.bytes();
        EXPECT_TRUE(given.ep == 1 || v.type.shape[0] == tensor::Dim(4 / given.ep)) << v.name;
      }
      base::SharedCache packs;
      const auto made =
          lower_inference(std::move(local), {.compile = {.threads = 1}, .strategy = given}, packs, graph);
      EXPECT_GT(made.program->steps.size(), 0u);
      return bytes;
    };
    const int64_t whole = held({}, 0);
    EXPECT_GT(whole, 0);
    for (const int ranks : {2, 4}) {
      for (int rank = 0; rank < ranks; ++rank)
        EXPECT_EQ(held({.tp = ranks, .ep = ranks}, rank) * ranks, whole);
    }
  }
}

}  // namespace
}  // namespace trireme::lower
