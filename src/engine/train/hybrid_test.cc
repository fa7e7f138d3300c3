// Tensor-parallel training and hybrids: every layout of the same number of ranks learns the same.
#include <gtest/gtest.h>

#include <cmath>

#include "comm/local.h"
#include "engine/train/state_parts.h"
#include "engine/train/test_training.h"
#include "engine/train/train_session.h"
#include "passes/partition/shard_rules.h"
#include "tests/test_device.h"
#include "tests/train_steps.h"

namespace trireme::engine {
namespace {

using passes::OptimizerKind;
using passes::Strategy;
using tensor::DType;
using tensor::Tensor;

template <int64_t kVocabulary>
TrainCase language_case(const std::string& network, std::vector<std::string> options) {
  options.push_back(base::concat("vocabulary=", kVocabulary));
  TrainCase c{network, tests::loss_network(network, options), tests::ruled_tokens<kVocabulary>, {}};
  c.options.optimizer.clip_norm = 0.5;
  c.options.device = tests::device_under_test();
  c.options.threads = 1;
  return c;
}

/// Sizes that every axis of 8 ranks divides, and a vocabulary that none of them divides.
TrainCase wide_gpt(const std::string& dropout = "0.1") {
  return language_case<37>("gpt2", {"positions=8", "width=64", "layers=8", "heads=8", "dropout=" + dropout});
}
TrainCase llama(int kv_heads) {
  return language_case<37>("llama", {"positions=8", "width=32", "layers=2", "heads=4", "inner=64",
                                     base::concat("kv_heads=", kv_heads)});
}

struct HybridRun {
  std::vector<double> loss, norm, count;
  std::map<std::string, Tensor> weights;
  int64_t bytes = 0;  ///< bytes of rank 0's states
};

constexpr size_t kHybridMicroBatches = 8;  // of a step, over all ranks

HybridRun steps(TrainSession& session, const TrainCase& c, comm::Mesh* mesh, int count) {
  HybridRun out;
  const size_t own =
      kHybridMicroBatches / static_cast<size_t>(mesh == nullptr ? 1 : mesh->shape().extent("dp"));
  for (int step = 0; step < count; ++step) {
    const StepResult r = tests::train_step(session, c.feeds, step, {kHybridMicroBatches, own, 1.0f / 100});
    out.loss.push_back(r.loss_sum);
    out.norm.push_back(r.grad_norm);
    out.count.push_back(r.count);
  }
  out.bytes = session.states().bytes();
  const ir::Graph trained = session.trained_graph();
  for (const ir::Value& v : trained.values()) {
    if (v.kind == ir::ValueKind::param && v.data.elements() > 1) out.weights[v.name] = v.data.clone();
  }
  return out;
}

HybridRun steps_alone(const TrainCase& c, int count = 3) {
  TrainSession session(c.graph, c.options);
  return steps(session, c, nullptr, count);
}

/// Trains on as many local ranks as the strategy needs; returns rank 0's results, equal to all others'.
HybridRun on_ranks(const TrainCase& c, const Strategy& wanted, int count = 3) {
  const Strategy strategy = passes::choose_kv_ranks(c.graph, wanted);
  comm::LocalWorld world(strategy.world());
  std::vector<HybridRun> got(static_cast<size_t>(strategy.world()));
  world.run([&](comm::Communicator& comm) {
    TrainOptions options = c.options;
    options.strategy = options.strategy.over(strategy);
    comm::Mesh mesh(comm, strategy.mesh());
    options.mesh = &mesh;
    TrainSession session(c.graph, options);
    got[static_cast<size_t>(comm.rank())] = steps(session, c, &mesh, count);
  });
  for (const HybridRun& t : got) {
    EXPECT_EQ(t.loss, got[0].loss);
    EXPECT_EQ(t.norm, got[0].norm);
  }
  return got[0];
}

double relative(const std::vector<double>& a, const std::vector<double>& b) {
  double worst = 0;
  for (size_t i = 0; i < a.size(); ++i) worst = std::max(worst, std::abs(a[i] - b[i]) / std::abs(a[i]));
  return worst;
}

void expect_layouts_near(const HybridRun& want, const HybridRun& got, double tolerance = 2e-5) {
  EXPECT_EQ(want.count, got.count);
  EXPECT_LT(relative(want.loss, got.loss), tolerance);
  EXPECT_LT(relative(want.norm, got.norm), tolerance);
  ASSERT_EQ(want.weights.size(), got.weights.size());
  for (const auto& [name, t] : want.weights) {
    const Tensor& other = got.weights.at(name);
    ASSERT_EQ(t.dims(), other.dims()) << name;
    double difference = 0, size = 0;
    for (size_t i = 0; i < t.data<float>().size(); ++i) {
      const double a = double(t.data<float>()[i]), b = double(other.data<float>()[i]);
      difference += (a - b) * (a - b), size += a * a;
    }
    EXPECT_LT(std::sqrt(difference), 20 * tolerance * std::sqrt(size)) << name;
  }
}

std::string text(const Strategy& s) {
  return base::concat("dp ", s.dp, " pp ", s.pp, " tp ", s.tp, " zero ", s.zero,
                      s.sequence ? " sequence" : "");
}

TEST(TensorParallel, GptOnTwoAndFourRanks) {
  const TrainCase c = wide_gpt();
  const HybridRun want = steps_alone(c);
  for (const Strategy& s : {Strategy{.tp = 2}, Strategy{.tp = 4}, Strategy{.tp = 2, .sequence = true}}) {
    SCOPED_TRACE(text(s));
    const HybridRun got = on_ranks(c, s);
    expect_layouts_near(want, got);
    EXPECT_LT(got.bytes, want.bytes * 6 / 10);
  }
}

TEST(TensorParallel, LlamaWithFewerKeyHeadsThanRanks) {
  for (const int kv_heads : {1, 2}) {
    const TrainCase c = llama(kv_heads);
    const HybridRun want = steps_alone(c);
    for (const Strategy& s : {Strategy{.tp = 2}, Strategy{.tp = 4}}) {
      SCOPED_TRACE(text(s));
      expect_layouts_near(want, on_ranks(c, s));
    }
  }
}

TEST(TensorParallel, PartsOfUnevenLengthComputeTheSameAgain) {
  // 65 and 64 scores per token: 64 bytes are small relative to the largest value on one rank only.
  TrainCase c = language_case<129>("llama", {"positions=8", "width=32", "layers=2", "heads=4", "inner=64"});
  const HybridRun want = steps_alone(c);
  for (const passes::RecomputeMode mode : {passes::RecomputeMode::selective, passes::RecomputeMode::full}) {
    c.options.strategy.recompute.mode = mode;
    for (const Strategy& s : {Strategy{.tp = 2}, Strategy{.tp = 2, .pp = 2}}) {
      SCOPED_TRACE(text(s));
      expect_layouts_near(want, on_ranks(c, s));
    }
  }
}

TEST(TensorParallel, WithEveryStageOfZero) {
  const TrainCase c = wide_gpt();
  const HybridRun want = steps_alone(c);
  for (const int zero : {0, 1, 2, 3}) {
    const Strategy s{.dp = 2, .tp = 2, .zero = zero, .bucket_mb = 0.01};
    SCOPED_TRACE(text(s));
    expect_layouts_near(want, on_ranks(c, s));
  }
}

TEST(TensorParallel, ShorterPartsMayFillOtherBucketsOfZero) {
  // 17, 17, 17 and 14 rows of the vocabulary: the last rank has fewer bytes, and another number of buckets.
  TrainCase c = language_case<65>("gpt2", {"positions=12", "width=32", "layers=1", "heads=4"});
  const HybridRun want = steps_alone(c, 2);
  for (const passes::RecomputeMode mode : {passes::RecomputeMode::none, passes::RecomputeMode::full}) {
    c.options.strategy.recompute.mode = mode;
    for (const int zero : {1, 2, 3}) {
      const Strategy s{.dp = 2, .tp = 4, .zero = zero};
      SCOPED_TRACE(text(s));
      expect_layouts_near(want, on_ranks(c, s, 2));
    }
  }
}

TEST(TensorParallel, NormsOfWholeMatricesInLamb) {
  TrainCase c = wide_gpt();
  c.options.optimizer.kind = OptimizerKind::lamb;
  const HybridRun want = steps_alone(c);
  for (const Strategy& s : {Strategy{.tp = 2}, Strategy{.dp = 2, .tp = 2, .zero = 2}}) {
    SCOPED_TRACE(text(s));
    expect_layouts_near(want, on_ranks(c, s));
  }
}

TEST(TensorParallel, MatricesAreGatheredForMuonAndAdafactor) {
  for (const OptimizerKind kind : {OptimizerKind::muon, OptimizerKind::adafactor}) {
    TrainCase c = wide_gpt();
    c.options.optimizer.kind = kind;
    c.options.optimizer.ema_keep = 0.9;
    const HybridRun want = steps_alone(c);
    for (const Strategy& s :
         {Strategy{.tp = 2}, Strategy{.dp = 2, .tp = 2, .zero = 3}, Strategy{.tp = 2, .pp = 2}}) {
      SCOPED_TRACE(text(s));
      expect_layouts_near(want, on_ranks(c, s), 2e-4);
    }
  }
}

TEST(TensorParallel, ABudgetOfActivationsIsThatOfAllRanks) {
  TrainCase c = wide_gpt();
  const HybridRun want = steps_alone(c);
  c.options.strategy.recompute.activation_bytes = 1'050'000;
  for (const Strategy& s : {Strategy{.tp = 2}, Strategy{.dp = 2, .tp = 2, .zero = 3}}) {
    SCOPED_TRACE(text(s));
    expect_layouts_near(want, on_ranks(c, s));
  }
}

TEST(TensorParallel, EightBitSumsOverRanksRoundByTheirOwnScales) {
  TrainCase c = wide_gpt();
  c.options.strategy.precision.compute = passes::Precision::fp8;
  const HybridRun want = steps_alone(c);
  for (const Strategy& s : {Strategy{.tp = 2}, Strategy{.dp = 2, .tp = 2, .zero = 3}}) {
    SCOPED_TRACE(text(s));
    const HybridRun got = on_ranks(c, s);
    EXPECT_LT(relative(want.loss, got.loss), 1e-2);
    EXPECT_LT(relative(want.norm, got.norm), 0.1);
  }
}

TEST(TensorParallel, InBf16) {
  TrainCase c = wide_gpt();
  c.options.strategy.precision.compute = passes::Precision::bf16;
  const HybridRun want = steps_alone(c);
  for (const Strategy& s :
       {Strategy{.tp = 2}, Strategy{.dp = 2, .tp = 2, .zero = 1}, Strategy{.dp = 2, .tp = 2, .zero = 3}}) {
    SCOPED_TRACE(text(s));
    // Other sums round to other 16-bit values, which Adam amplifies where true gradients are zero (key
    // biases).
    const HybridRun got = on_ranks(c, s);
    EXPECT_LT(relative(want.loss, got.loss), 4e-3);
    EXPECT_LT(relative(want.norm, got.norm), 6e-2);
  }
}

/// Content for any input: random numbers, or ids valid for all networks of the test.
Feeds any_feeds(const ir::Graph& graph, uint64_t stream) {
  constexpr int64_t kRows = 4, kTokens = 8, kFewest = 3;
  base::Rng rng(9, stream);
  Feeds feeds;
  for (const ir::ValueId id : graph.inputs()) {
    const ir::Value& v = graph.value(id);
    tensor::Dims dims;
    for (size_t d = 0; d < v.type.shape.rank(); ++d) {
      const tensor::Dim extent = v.type.shape[d];
      dims.push_back(extent.is_static() ? extent.value() : d == 0 ? kRows : kTokens);
    }
    Tensor t = Tensor::zeros(v.type.dtype, dims);
    if (v.type.dtype == DType::f32) {
      for (float& x : t.mutable_data<float>()) x = static_cast<float>(rng.normal());
    } else {
      const bool is_mask = v.name == "attention_mask", is_type = v.name == "token_type_ids";
      for (int64_t& x : t.mutable_data<int64_t>())
        x = is_mask ? 1 : static_cast<int64_t>(rng.uniform() * (is_type ? 2 : kFewest));
    }
    feeds.push_back(std::move(t));
  }
  return feeds;
}

struct ZooNetwork {
  std::string name;
  std::vector<std::string> options;
};

/// Trains three steps of two micro-batches; gathers the states.
HybridRun any_steps(const ir::Graph& graph, const Strategy& wanted) {
  const Strategy strategy = passes::choose_kv_ranks(graph, wanted);
  comm::LocalWorld world(strategy.world());
  std::vector<HybridRun> got(static_cast<size_t>(strategy.world()));
  world.run([&](comm::Communicator& comm) {
    TrainOptions options;
    options.threads = 1;
    options.strategy = options.strategy.over(strategy);
    comm::Mesh mesh(comm, strategy.mesh());
    options.mesh = &mesh;
    TrainSession session(graph, options);
    HybridRun& out = got[static_cast<size_t>(comm.rank())];
    const size_t own = 2 / static_cast<size_t>(strategy.dp);
    for (int step = 0; step < 3; ++step) {
      std::vector<Feeds> feeds;
      for (size_t i = 0; i < own; ++i)
        feeds.push_back(any_feeds(graph, static_cast<uint64_t>(step) * 2 + session.own_micro_batch(i, own)));
      const StepResult r =
          session.step(feeds, {.lr = 1e-4f, .step = step + 1, .seed = 3, .draw = step, .loss_weight = 0.1f});
      out.loss.push_back(r.loss_sum);
      out.norm.push_back(r.grad_norm);
      out.count.push_back(r.count);
    }
    const ir::Graph trained = session.trained_graph();
    for (const ir::Value& v : trained.values()) {
      if (v.kind == ir::ValueKind::param && v.data.elements() > 1) out.weights[v.name] = v.data.clone();
    }
  });
  return got[0];
}

TEST(Hybrid, NetworksOfTheZoo) {
  const std::vector<std::string> encoder{"width=32", "layers=2", "heads=4", "dropout=0.1"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.end(), encoder.begin(), encoder.end());
    return more;
  };
  for (const ZooNetwork& n : {ZooNetwork{"mlp", {"hidden=[32, 32]", "classes=8"}}, ZooNetwork{"cnn", {}},
                              ZooNetwork{"resnet", {"depth=18", "size=32", "classes=8"}},
                              ZooNetwork{"bert", with({"vocabulary=40", "positions=8", "classes=8"})},
                              ZooNetwork{"vit_tiny", with({"classes=8"})}, ZooNetwork{"perception", {}}}) {
    SCOPED_TRACE(n.name);
    ir::Graph graph = model::zoo::build(n.name, n.options).graph;
    model::add_loss(graph, {.kind = n.name == "perception" ? model::LossKind::detection
                                                           : model::LossKind::cross_entropy});
    graph.sort();
    const HybridRun want = any_steps(graph, {});
    for (const int zero : {0, 3}) {
      const HybridRun got = any_steps(graph, {.dp = 2, .zero = zero});
      EXPECT_EQ(want.loss, got.loss);
      EXPECT_EQ(want.norm, got.norm);
      for (const auto& [name, t] : want.weights) EXPECT_TRUE(t.same_as(got.weights.at(name))) << name;
    }
    const HybridRun got = any_steps(graph, {.tp = 2});
    EXPECT_LT(relative(want.loss, got.loss), 1e-4);
    // Batch norms over few elements amplify rounding errors from the second step on.
    EXPECT_LT(std::abs(want.norm[0] - got.norm[0]), 1e-5 * want.norm[0]);
  }
}

/// Every factorization of 8 = dp x pp x tp, with varying stages of ZeRO.
TEST(Hybrid, EveryFactorisationOfEightRanksLearnsTheSame) {
  const TrainCase c = wide_gpt();
  const HybridRun want = steps_alone(c);
  int zero = 0;
  for (const int dp : {1, 2, 4, 8}) {
    for (const int pp : {1, 2, 4, 8}) {
      if (8 % (dp * pp) != 0) continue;
      const Strategy s{
          .dp = dp, .tp = 8 / dp / pp, .pp = pp, .zero = dp > 1 ? zero++ % 4 : 0, .bucket_mb = 0.05};
      SCOPED_TRACE(text(s));
      expect_layouts_near(want, on_ranks(c, s));
    }
  }
}

}  // namespace
}  // namespace trireme::engine
