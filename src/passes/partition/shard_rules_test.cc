// Which weights are split: models with shapes unlike those of our networks, explicit rules, and refusals.
#include "passes/partition/shard_rules.h"

#include <gtest/gtest.h>

#include "tests/partition_trial.h"

namespace trireme::passes {
namespace {

using namespace tests;

/// The decisions for all split weights: "name S(dim)" with axes.
std::string splits(const ir::Graph& graph, const Strategy& strategy) {
  std::string text;
  for (const auto& [name, shard] : place_params(graph, strategy))
    text += name + shard.to_string(strategy.mesh()) + " ";
  return text;
}

/// Key heads that are repeated for the query heads before attention reads them, as in older exporters.
TEST(ShardRules, RepeatedKeyHeads) {
  Model m;
  const ValueId x = m.op("mul", {m.input("x", {2, 5, 8}), m.weight("scale", {8})});
  const auto heads = [&](const std::string& name, int64_t n) {
    return m.reshape(m.op("matmul", {x, m.weight(name, {8, n * 6})}), {2, 5, n, 6});
  };
  const auto repeated = [&](const std::string& name) {
    const ValueId each = m.op("unsqueeze", {heads(name, 2), m.ints({3})});
    return m.reshape(m.op("expand", {each, m.ints({2, 5, 2, 2, 6})}), {2, 5, 4, 6});
  };
  const ValueId y = m.op("attention_bsnd", {heads("q", 4), repeated("k"), repeated("v")});
  Partitioning how =
      m.finish(m.op("matmul", {m.reshape(y, {2, 5, 24}), m.weight("o", {24, 8})}), MeshShape());
  for (int ranks : {2, 4}) {
    const Strategy s = choose_kv_ranks(m.graph, {.tp = ranks});
    EXPECT_EQ(s.kv_ranks, 2);
    how.mesh = s.mesh();
    how.placed = place_params(m.graph, s);
    how.outputs.clear();
    for (const auto& [name, shard] : how.placed) how.outputs[name + ".grad"] = shard;
    expect_same(m.graph, how, m.feeds);
    EXPECT_EQ(splits(m.graph, s), ranks == 2 ? "k@tp:S(1) o@tp:S(0) q@tp:S(1) v@tp:S(1) "
                                             : "k@tp:S(1) o@tpr:S(0)@tp:S(0) q@tpr:S(1)@tp:S(1) v@tp:S(1) ");
  }
}

/// Queries, keys and values interleaved by head: one section of whole heads.
TEST(ShardRules, PackedByHead) {
  Model m;
  const ValueId x = m.op("mul", {m.input("x", {2, 5, 8}), m.weight("scale", {8})});
  const ValueId all =
      m.op("add", {m.op("matmul", {x, m.weight("qkv", {8, 72})}), m.weight("qkv_bias", {72})});
  const auto parts = m.graph.add(ops::table().need("split"), {m.reshape(all, {2, 5, 4, 18})},
                                 {{"axis", int64_t{3}}, {"num_outputs", int64_t{3}}}, 3, "split");
  const ValueId y = m.op("attention_bsnd", {parts[0], parts[1], parts[2]}, {{"is_causal", int64_t{1}}});
  Partitioning how =
      m.finish(m.op("matmul", {m.reshape(y, {2, 5, 24}), m.weight("o", {24, 8})}), MeshShape());
  for (int ranks : {2, 4}) {
    const Strategy s{.tp = ranks};
    EXPECT_EQ(splits(m.graph, s), "o@tp:S(0) qkv@tp:S(1) qkv_bias@tp:S(0) ");
    how.mesh = s.mesh();
    how.placed = place_params(m.graph, s);
    how.outputs.clear();
    for (const auto& [name, shard] : how.placed) how.outputs[name + ".grad"] = shard;
    const ir::Graph g = expect_same(m.graph, how, m.feeds);
    EXPECT_EQ(count(g, "all_gather"), 0u) << ir::print(g);
  }
}

TEST(ShardRules, RulesComeFirst) {
  Model m;
  const ValueId x = m.op("mul", {m.input("x", {2, 5, 8}), m.weight("scale", {8})});
  const ValueId up = m.op("gelu", {m.op("matmul", {x, m.weight("onnx::MatMul_7", {8, 12})})});
  m.finish(m.op("matmul", {up, m.weight("down", {12, 8})}), MeshShape());
  EXPECT_EQ(splits(m.graph, {.tp = 2}), "down@tp:S(0) onnx::MatMul_7@tp:S(1) ");
  EXPECT_EQ(splits(m.graph, {.tp = 2, .rules = {"onnx::MatMul_7:tp:0", "down:whole"}}),
            "onnx::MatMul_7@tp:S(0) ");
  EXPECT_EQ(splits(m.graph, {.tp = 2, .rules = {"*MatMul*:tp:1/3"}}),
            "down@tp:S(0) onnx::MatMul_7@tp:S(1/3) ");
  // 12 columns over 8 ranks: nothing is split, and this is no error.
  EXPECT_EQ(splits(m.graph, {.tp = 8}), "");
  for (const char* bad :
       {"", "down", "down:tp", ":tp:1", "down:dp:1", "down:tp:x", "down:tp:1/0", "down:tp:1/", "down:tp:2"})
    EXPECT_THROW(splits(m.graph, {.tp = 2, .rules = {bad}}), base::Error) << bad;
}

}  // namespace
}  // namespace trireme::passes
