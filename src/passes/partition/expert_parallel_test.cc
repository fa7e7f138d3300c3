// Mixtures split between experts against the whole: results, placements, the number of sums over ranks, and
// what each rank holds.
#include "passes/partition/expert_parallel.h"

#include <gtest/gtest.h>

#include "passes/partition/shard_rules.h"
#include "tests/partition_trial.h"

namespace trireme::passes {
namespace {

using namespace tests;

constexpr int64_t kExperts = 8;

/// x [2, 3, 6] -> gate and up of two choices -> an activation that is not 0 at 0 -> down, summed by shares.
struct Mixture {
  Model m;
  Partitioning how;

  explicit Mixture(MeshShape mesh, bool reads_gate = false) {
    const Tensor chosen =
        Tensor::from<int64_t>({2, 3, 2}, std::vector<int64_t>{0, 7, 3, 1, 5, 2, 6, 4, 7, 0, 1, 3});
    const ValueId x = m.input("x", {2, 3, 6}), choices = m.graph.add_constant(chosen);
    const auto weight = [&](const std::string& name, tensor::Dims dims) {
      m.feeds[name] = random_tensor(DType::f64, dims, -0.5, 0.5, m.feeds.size() + 1);
      return m.graph.add_param(name, m.feeds[name]);
    };
    const auto product = [&](const std::string& name, ValueId rows, int64_t n, int64_t k, ValueId shares) {
      std::vector<ValueId> in{rows, choices, weight(name + ".weight", {kExperts, n, k}),
                              weight(name + ".bias", {kExperts, n})};
      if (shares != ir::kNoValue) in.push_back(shares);
      return m.op("expert_linear", in);
    };
    const ValueId gate = product("experts.gate", x, 4, 6, ir::kNoValue);
    const ValueId up = product("experts.up", x, 4, 6, ir::kNoValue);
    const ValueId one = m.graph.add_constant(Tensor::scalar<double>(1.0));
    const ValueId inner = m.op("mul", {m.op("sigmoid", {gate}), m.op("add", {up, one})});
    const ValueId shares = m.op("sigmoid", {m.input("scores", {2, 3, 2})});
    m.graph.add_output(m.op("add", {product("experts.down", inner, 6, 4, shares), x}), "y");
    if (reads_gate) m.graph.add_output(gate, "gate");
    m.graph.sort();
    how.mesh = std::move(mesh);
  }
  void place(const Strategy& strategy) {
    how.mesh = strategy.mesh();
    how.placed = place_params(m.graph, strategy);
  }
};

std::string all_splits(const Mixture& x) {
  std::string text;
  for (const auto& [name, shard] : x.how.placed) text += name + shard.to_string(x.how.mesh) + " ";
  return text;
}

TEST(ExpertParallel, EqualsTheWholeWithOneSum) {
  for (const int ranks : {2, 4, 8}) {
    Mixture x(tp(ranks));
    x.place({.tp = ranks, .ep = ranks});
    EXPECT_EQ(all_splits(x),
              "experts.down.bias@tp:S(0) experts.down.weight@tp:S(0) experts.gate.bias@tp:S(0) "
              "experts.gate.weight@tp:S(0) experts.up.bias@tp:S(0) experts.up.weight@tp:S(0) ");
    const ir::Graph g = expect_same(x.m.graph, x.how, x.m.feeds);
    EXPECT_EQ(count(g, "all_reduce"), 1u) << ir::print(g);
    EXPECT_EQ(count(g, "all_gather"), 0u) << ir::print(g);
    for (const ir::Value& v : g.values()) {
      if (!v.name.starts_with("experts.")) continue;
      EXPECT_EQ(v.type.shape[0], tensor::Dim(kExperts / ranks)) << v.name;
    }
  }
}

TEST(ExpertParallel, OverTwoAxes) {
  Mixture x(MeshShape({{"tpr", 2}, {"tp", 2}}));
  x.place({.tp = 4, .ep = 4, .kv_ranks = 2});
  expect_same(x.m.graph, x.how, x.m.feeds);
}

TEST(ExpertParallel, WithoutItRanksHaveAPartOfEveryExpert) {
  Mixture x(tp(2));
  x.place({.tp = 2});
  EXPECT_EQ(all_splits(x),
            "experts.down.weight@tp:S(2) experts.gate.bias@tp:S(1) experts.gate.weight@tp:S(1) "
            "experts.up.bias@tp:S(1) experts.up.weight@tp:S(1) ");
  EXPECT_EQ(split_experts(x.m.graph, x.how.placed, x.how.mesh), 0u);
}

TEST(ExpertParallel, RefusesWhatItCannotShareOut) {
  const auto refusal = [](const auto& run) {
    try {
      run();
    } catch (const base::Error& e) {
      return e.message();
    }
    return std::string("nothing");
  };
  EXPECT_NE(refusal([] {
              Mixture x(tp(3));
              x.place({.tp = 3, .ep = 3});
            }).find("8 experts, which 3 ranks do not divide"),
            std::string::npos);
  EXPECT_NE(refusal([] {
              Mixture x(tp(2), true);
              x.place({.tp = 2, .ep = 2});
              x.how.coordinates = {0, 0, 0, 0};
              partition(x.m.graph, x.how);
            }).find("an output reads what single choices give"),
            std::string::npos);
  const Strategy training{.tp = 2, .ep = 2};
  EXPECT_NE(refusal([&] { training.check(Purpose::training); }).find("training with ep = 2"),
            std::string::npos);
}

}  // namespace
}  // namespace trireme::passes
