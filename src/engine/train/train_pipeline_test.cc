// Pipelined training: the losses and weights of one rank for every schedule, cut and mesh.
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <map>

#include "comm/local.h"
#include "engine/train/state_parts.h"
#include "engine/train/test_training.h"
#include "engine/train/train_session.h"
#include "tests/test_device.h"
#include "tests/train_steps.h"

namespace trireme::engine {
namespace {

using passes::PipelineSchedule;
using tensor::DType;
using tensor::Tensor;

TrainCase make(const std::string& name, const std::vector<std::string>& options, Feeds (*feeds)(uint64_t)) {
  TrainCase c{name, tests::loss_network(name, options), feeds, {}};
  c.options.optimizer.kind = passes::OptimizerKind::adamw;
  c.options.optimizer.clip_norm = 0.5;
  c.options.device = tests::device_under_test();
  c.options.threads = 1;
  return c;
}

TrainCase deep_gpt(const std::string& tied = "true") {
  return make(
      "gpt2",
      {"vocabulary=32", "positions=8", "width=32", "layers=4", "heads=2", "dropout=0.1", "is_tied=" + tied},
      tests::ruled_tokens<32>);
}

TrainCase small_resnet() {
  return make("small_resnet", {"depth=14", "width=8", "classes=8", "size=16", "channels=3"},
              tests::noise_images<2, 16>);
}

struct StageLayout {
  int pp = 1, dp = 1, chunks = 1, zero = 0;
  PipelineSchedule schedule = PipelineSchedule::one_f_one_b;
  std::vector<std::string> cuts = {};
  std::string text() const {
    return base::concat("pp ", pp, " dp ", dp, " chunks ", chunks, " zero ", zero, " schedule ",
                        static_cast<int>(schedule));
  }
};

struct PipelineRun {
  std::vector<double> losses, norms, counts;
  std::map<std::string, Tensor> weights;  ///< of the trained graph
};

constexpr int kPipelineSteps = 3;

PipelineRun train_stages(TrainSession& session, const TrainCase& c, size_t micro_batches, int dp) {
  PipelineRun out;
  const size_t own = micro_batches / static_cast<size_t>(dp);
  for (int step = 0; step < kPipelineSteps; ++step) {
    const StepResult r = tests::train_step(session, c.feeds, step, {micro_batches, own, 1.0f / 50});
    EXPECT_FALSE(r.skipped);
    out.losses.push_back(r.loss_sum);
    out.counts.push_back(r.count);
    out.norms.push_back(r.grad_norm);
  }
  const ir::Graph trained = session.trained_graph();
  for (const ir::Value& v : trained.values()) {
    if (v.kind == ir::ValueKind::param && v.data.elements() > 1) out.weights[v.name] = v.data.clone();
  }
  return out;
}

/// Trains in a layout; the results of all ranks must be equal.
PipelineRun train_stages(const TrainCase& c, size_t micro_batches, const StageLayout& layout) {
  comm::LocalWorld world(layout.pp * layout.dp, {.deadline_ns = 60'000'000'000});
  std::vector<PipelineRun> all(static_cast<size_t>(world.size()));
  world.run([&](comm::Communicator& comm) {
    TrainOptions options = c.options;
    options.strategy.pp = layout.pp;
    options.strategy.dp = layout.dp;
    options.strategy.chunks = layout.chunks;
    options.strategy.zero = layout.zero;
    options.strategy.schedule = layout.schedule;
    options.strategy.cuts = layout.cuts;
    comm::Mesh mesh(comm, options.strategy.mesh());
    options.mesh = &mesh;
    TrainSession session(c.graph, options);
    all[static_cast<size_t>(comm.rank())] = train_stages(session, c, micro_batches, layout.dp);
  });
  for (const PipelineRun& t : all) {
    EXPECT_EQ(t.losses, all[0].losses);
    EXPECT_EQ(t.norms, all[0].norms);
    EXPECT_EQ(t.counts, all[0].counts);
    EXPECT_EQ(t.weights.size(), all[0].weights.size());
    for (const auto& [name, w] : t.weights) EXPECT_TRUE(w.same_as(all[0].weights.at(name))) << name;
  }
  return all[0];
}

/// The first loss has the same bits as on one rank; later ones may differ because the norm and tied gradients
/// are summed in another order.
void expect_runs_near(const PipelineRun& want, const PipelineRun& got, double tolerance = 1e-4) {
  EXPECT_EQ(want.losses[0], got.losses[0]);
  EXPECT_EQ(want.counts, got.counts);
  for (size_t i = 0; i < want.losses.size(); ++i) {
    EXPECT_NEAR(got.losses[i] / want.losses[i], 1, tolerance) << i;
    EXPECT_NEAR(got.norms[i] / want.norms[i], 1, tolerance) << i;
  }
  ASSERT_EQ(want.weights.size(), got.weights.size());
  for (const auto& [name, w] : want.weights)
    EXPECT_LT(relative_distance(w, got.weights.at(name)), 50 * tolerance) << name;
}

void expect_same_run(const PipelineRun& want, const PipelineRun& got) {
  EXPECT_EQ(want.losses, got.losses);
  EXPECT_EQ(want.norms, got.norms);
  for (const auto& [name, w] : want.weights) EXPECT_TRUE(w.same_as(got.weights.at(name))) << name;
}

PipelineRun run_alone(const TrainCase& c, size_t micro_batches) {
  TrainSession session(c.graph, c.options);
  return train_stages(session, c, micro_batches, 1);
}

TEST(TrainPipeline, EveryScheduleGivesTheSameBitsAndOneRanksLosses) {
  for (const TrainCase& c : {deep_gpt(), small_resnet()}) {
    const PipelineRun want = run_alone(c, 4);
    for (int pp : {2, 4}) {
      const PipelineRun first = train_stages(c, 4, {.pp = pp});
      SCOPED_TRACE(base::concat(c.name, " in ", pp));
      expect_runs_near(want, first);
      expect_same_run(first, train_stages(c, 4, {.pp = pp, .schedule = PipelineSchedule::gpipe}));
      expect_same_run(first, train_stages(c, 4, {.pp = pp, .schedule = PipelineSchedule::zero_bubble}));
    }
    expect_runs_near(want,
                     train_stages(c, 4, {.pp = 2, .chunks = 2, .schedule = PipelineSchedule::interleaved}));
  }
}

TEST(TrainPipeline, WithoutTiesAndClippingHasTheBitsOfOneRank) {
  for (TrainCase c : {deep_gpt("false"), small_resnet()}) {
    c.options.optimizer.clip_norm = 0;
    const PipelineRun want = run_alone(c, 4);
    for (const StageLayout& layout :
         {StageLayout{.pp = 2}, StageLayout{.pp = 4, .schedule = PipelineSchedule::zero_bubble},
          StageLayout{.pp = 2, .dp = 2},
          StageLayout{.pp = 2, .chunks = 2, .schedule = PipelineSchedule::interleaved},
          StageLayout{.pp = 2, .dp = 2, .zero = 3}}) {
      SCOPED_TRACE(c.name + " " + layout.text());
      const PipelineRun got = train_stages(c, 4, layout);
      EXPECT_EQ(want.losses, got.losses);
      for (const auto& [name, w] : want.weights) EXPECT_TRUE(w.same_as(got.weights.at(name))) << name;
    }
  }
}

TEST(TrainPipeline, WithDataParallelRanksAndEveryZero) {
  for (const TrainCase& c : {deep_gpt(), small_resnet()}) {
    const PipelineRun want = train_stages(c, 4, {.pp = 2});
    for (int zero : {0, 1, 2, 3}) {
      const StageLayout layout{.pp = 2, .dp = 2, .zero = zero};
      SCOPED_TRACE(c.name + " " + layout.text());
      expect_same_run(want, train_stages(c, 4, layout));
    }
  }
}

TEST(TrainPipeline, OneMicroBatchAndOddNumbers) {
  const TrainCase c = deep_gpt("false");
  for (size_t micro_batches : {1, 3, 5}) {
    const PipelineRun want = run_alone(c, micro_batches);
    const PipelineRun got = train_stages(c, micro_batches, {.pp = 2});
    expect_runs_near(want, got);
    expect_same_run(got,
                    train_stages(c, micro_batches, {.pp = 2, .schedule = PipelineSchedule::zero_bubble}));
  }
}

TEST(TrainPipeline, CutsByNameAndSixteenBits) {
  TrainCase c = deep_gpt();
  c.options.strategy.precision.compute = passes::Precision::bf16;
  c.options.optimizer.ema_keep = 0.9;
  const PipelineRun want = run_alone(c, 4);
  expect_runs_near(want, train_stages(c, 4, {.pp = 3, .cuts = {"h.1", "h.3"}}), 1e-3);
  for (int zero : {1, 3}) expect_runs_near(want, train_stages(c, 4, {.pp = 2, .dp = 2, .zero = zero}), 1e-3);
}

TEST(TrainPipeline, AStageWhoseWeightsAreAllFrozen) {
  TrainCase c = deep_gpt("false");
  c.options.freeze = {"wte", "wpe", "h.0.", "h.1.", "h.2."};  // more than the first stage holds
  for (const double keep : {0.0, 0.9}) {
    c.options.optimizer.ema_keep = keep;
    const PipelineRun want = run_alone(c, 4);
    for (const auto schedule : {PipelineSchedule::one_f_one_b, PipelineSchedule::zero_bubble})
      expect_runs_near(want, train_stages(c, 4, {.pp = 2, .schedule = schedule}));
    expect_runs_near(want, train_stages(c, 4, {.pp = 2, .dp = 2, .zero = 1}));
  }
}

TEST(TrainPipeline, RecomputationKeepsTheBits) {
  TrainCase c = deep_gpt();
  const PipelineRun want = train_stages(c, 4, {.pp = 2});
  for (auto mode : {passes::RecomputeMode::selective, passes::RecomputeMode::full}) {
    c.options.strategy.recompute.mode = mode;
    expect_same_run(want, train_stages(c, 4, {.pp = 2}));
  }
}

/// The bytes of buffers plus the largest arena of each stage.
std::vector<int64_t> activation_bytes(TrainCase c, int64_t budget, PipelineSchedule schedule) {
  std::vector<int64_t> bytes(4);
  comm::LocalWorld world(4, {.deadline_ns = 60'000'000'000});
  world.run([&](comm::Communicator& comm) {
    TrainOptions options = c.options;
    options.strategy.recompute.activation_bytes = budget;
    options.strategy.pp = 4;
    options.strategy.schedule = schedule;
    options.strategy.cuts = {"h.1", "h.2", "h.3"};
    comm::Mesh mesh(comm, options.strategy.mesh());
    options.mesh = &mesh;
    TrainSession session(c.graph, options);
    auto programs = session.programs({{2, 8}, {2, 8}}, 8);
    programs.pop_back();  // without the update
    int64_t arena = 0;
    for (const compile::Program* p : programs) arena = std::max(arena, p->memory.arena_bytes);
    bytes[static_cast<size_t>(comm.rank())] = arena + session.pipeline_bytes({{2, 8}, {2, 8}}, 8);
  });
  return bytes;
}

TEST(TrainPipeline, MemoryFollowsTheSchedule) {
  const TrainCase c = deep_gpt();
  const auto one = activation_bytes(c, 0, PipelineSchedule::one_f_one_b);
  const auto all = activation_bytes(c, 0, PipelineSchedule::gpipe);
  // With equal layers, stage 1 keeps three micro-batches and stage 2 two; GPipe keeps all 8.
  EXPECT_GT(one[1], one[2]);
  EXPECT_NEAR(static_cast<double>(all[1] - one[1]) / static_cast<double>(all[2] - one[2]), 5.0 / 6, 0.05);
  // A budget between the minimum and the maximum is met by recomputation.
  const int64_t budget = one[0] * 4 / 5;
  for (int64_t bytes : activation_bytes(c, budget, PipelineSchedule::one_f_one_b)) EXPECT_LE(bytes, budget);
  EXPECT_THROW(activation_bytes(c, 1000, PipelineSchedule::one_f_one_b), base::Error);
}

TEST(TrainPipeline, ABadTokenFailsTheStepOnEveryStageAndChangesNothing) {
  const TrainCase c = deep_gpt();
  comm::LocalWorld world(2, {.deadline_ns = 60'000'000'000});
  std::atomic<int> refused{0};
  world.run([&](comm::Communicator& comm) {
    TrainOptions options = c.options;
    options.strategy.pp = 2;
    comm::Mesh mesh(comm, options.strategy.mesh());
    options.mesh = &mesh;
    TrainSession session(c.graph, options);
    std::vector<Feeds> feeds{tests::ruled_tokens<32>(1), tests::ruled_tokens<32>(2),
                             tests::ruled_tokens<32>(3)};
    feeds[1][0].mutable_data<int64_t>()[3] = 77;
    session.prepare({{2, 8}, {2, 8}}, 3);
    std::map<std::string, Tensor> before;
    for (const std::string& name : session.states().names()) before[name] = session.states().at(name).clone();
    try {
      session.step(feeds, {.lr = 0.1f});
    } catch (const base::Error& e) {
      EXPECT_EQ(e.code(), base::ErrorCode::invalid_argument) << e.what();
      ++refused;
    }
    for (const auto& [name, t] : before) EXPECT_TRUE(t.same_as(session.states().at(name))) << name;
    feeds[1] = tests::ruled_tokens<32>(2);
    EXPECT_FALSE(session.step(feeds, {.lr = 0.1f}).skipped);
  });
  EXPECT_EQ(refused, 2);
}

TEST(TrainPipeline, Resnet152OnFourStages) {
  const TrainCase c = make("resnet", {"depth=152", "size=32", "classes=8"}, tests::noise_images<2, 32>);
  const PipelineRun want = run_alone(c, 2);
  expect_runs_near(want, train_stages(c, 2, {.pp = 4}), 1e-3);
}

}  // namespace
}  // namespace trireme::engine
