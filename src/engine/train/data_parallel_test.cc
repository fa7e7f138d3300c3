// Data parallelism: losses and weights have the same bits for every number of ranks and every stage of ZeRO.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "comm/local.h"
#include "engine/train/rank_memory.h"
#include "engine/train/state_parts.h"
#include "engine/train/test_training.h"
#include "engine/train/train_session.h"
#include "ops/table.h"
#include "tests/test_device.h"
#include "tests/train_steps.h"

namespace trireme::engine {
namespace {

using passes::OptimizerKind;
using passes::Precision;
using tensor::DType;
using tensor::Tensor;

TrainCase small_gpt(OptimizerKind kind, Precision precision) {
  TrainCase c{"gpt",
              tests::loss_network(
                  "gpt2", {"vocabulary=32", "positions=8", "width=32", "layers=2", "heads=2", "dropout=0.1"}),
              tests::ruled_tokens<32>,
              {}};
  c.options.optimizer.kind = kind;
  c.options.optimizer.clip_norm = 0.5;
  c.options.strategy.precision.compute = precision;
  c.options.device = tests::device_under_test();
  c.options.threads = 1;
  return c;
}

TrainCase resnet(OptimizerKind kind, Precision precision) {
  TrainCase c = small_gpt(kind, precision);
  c.name = "resnet";
  c.graph = tests::loss_network("small_resnet", {"depth=8", "width=8", "classes=8", "size=16", "channels=3"});
  c.feeds = tests::noise_images<4, 16>;
  return c;
}

/// How the work is divided among ranks.
struct ReplicaLayout {
  int dp = 1, zero = 0;
  std::string text() const { return base::concat("dp ", dp, " zero ", zero); }
};

struct ReplicaRun {
  std::vector<double> numbers;  ///< loss, count and norm of every step
  std::map<std::string, Tensor> states;
};

constexpr size_t kReplicaMicroBatches = 4;  // of a step, over all ranks
constexpr int kReplicaSteps = 3;

/// The copies that a rank's forward pass reads must equal the rounded masters.
void expect_rounded_copies(const TrainSession& session, const ReplicaRun& trained, const comm::Mesh* mesh) {
  for (const auto& [copy, master] : session.copies()) {
    const Tensor& held = session.scratch().at(copy);
    const Tensor& whole = trained.states.at(master);
    const StatePlace place = session.scratch().place(copy);
    const Tensor own = mesh == nullptr ? whole : part_of(whole, place, mesh->shape(), mesh->coordinates());
    EXPECT_TRUE(held.same_as(converted(own, held.dtype()))) << copy;
  }
}

/// Trains in one rank's session; the results of all ranks are equal.
ReplicaRun train_replicas(TrainSession& session, const TrainCase& c, size_t micro_batches, comm::Mesh* mesh) {
  ReplicaRun out;
  const size_t own = micro_batches / static_cast<size_t>(mesh == nullptr ? 1 : mesh->shape().extent("dp"));
  for (int step = 0; step < kReplicaSteps; ++step) {
    const StepResult r = tests::train_step(session, c.feeds, step, {micro_batches, own, 1.0f / 50});
    out.numbers.insert(out.numbers.end(), {r.loss_sum, r.count, r.grad_norm});
  }
  for (const std::string& name : session.states().names()) {
    const Tensor& held = session.states().at(name);
    out.states[name] =
        mesh == nullptr ? held.clone() : whole_of(held, session.states().place(name), *mesh).clone();
  }
  expect_rounded_copies(session, out, mesh);
  return out;
}

/// Fails unless both hold the same bits.
void expect_same_states(const ReplicaRun& want, const ReplicaRun& got, const std::string& what) {
  EXPECT_EQ(want.numbers, got.numbers) << what;
  ASSERT_EQ(want.states.size(), got.states.size()) << what;
  for (const auto& [name, t] : want.states) {
    ASSERT_TRUE(got.states.contains(name)) << what << " " << name;
    EXPECT_TRUE(t.same_as(got.states.at(name))) << what << " " << name;
  }
}

/// The final results of all ranks of a layout.
std::vector<ReplicaRun> train_on(const TrainCase& c, ReplicaLayout layout, size_t micro_batches) {
  comm::LocalWorld world(layout.dp);
  std::vector<ReplicaRun> got(static_cast<size_t>(layout.dp));
  world.run([&](comm::Communicator& comm) {
    TrainOptions options = c.options;
    options.strategy.dp = layout.dp;
    options.strategy.zero = layout.zero;
    options.strategy.bucket_mb = 0.01;
    comm::Mesh mesh(comm, options.strategy.mesh());
    options.mesh = &mesh;
    TrainSession session(c.graph, options);
    got[static_cast<size_t>(comm.rank())] = train_replicas(session, c, micro_batches, &mesh);
  });
  return got;
}

void expect_layouts_agree(const TrainCase& c, size_t micro_batches = kReplicaMicroBatches) {
  TrainSession alone(c.graph, c.options);
  const ReplicaRun want = train_replicas(alone, c, micro_batches, nullptr);
  for (const ReplicaLayout layout : {ReplicaLayout{1, 3}, ReplicaLayout{2, 0}, ReplicaLayout{2, 1},
                                     ReplicaLayout{2, 2}, ReplicaLayout{2, 3}, ReplicaLayout{4, 0},
                                     ReplicaLayout{4, 1}, ReplicaLayout{4, 2}, ReplicaLayout{4, 3}}) {
    for (const ReplicaRun& rank : train_on(c, layout, micro_batches))
      expect_same_states(want, rank, layout.text());
  }
}

/// Six micro-batches on two and three ranks: same bits if ranks own whole subtrees of the sums.
TEST(DataParallel, NumbersThatAreNoPowersOfTwo) {
  const TrainCase c = small_gpt(OptimizerKind::adamw, Precision::f32);
  TrainSession alone(c.graph, c.options);
  const ReplicaRun want = train_replicas(alone, c, 6, nullptr);
  for (const ReplicaLayout layout : {ReplicaLayout{3, 0}, ReplicaLayout{2, 2}, ReplicaLayout{2, 3}})
    for (const ReplicaRun& rank : train_on(c, layout, 6)) expect_same_states(want, rank, layout.text());
  for (const ReplicaLayout layout : {ReplicaLayout{2, 0}, ReplicaLayout{2, 1}, ReplicaLayout{3, 1},
                                     ReplicaLayout{3, 2}, ReplicaLayout{3, 3}}) {
    for (const ReplicaRun& rank : train_on(c, layout, 6)) {
      for (size_t i = 0; i < want.numbers.size(); ++i)
        EXPECT_NEAR(want.numbers[i], rank.numbers[i], 1e-5 * std::abs(want.numbers[i])) << layout.text();
    }
  }
}

TEST(DataParallel, GptAdamW) { expect_layouts_agree(small_gpt(OptimizerKind::adamw, Precision::f32)); }
TEST(DataParallel, GptAdamWInBf16) { expect_layouts_agree(small_gpt(OptimizerKind::adamw, Precision::bf16)); }
TEST(DataParallel, GptAdamWInFp8) { expect_layouts_agree(small_gpt(OptimizerKind::adamw, Precision::fp8)); }
TEST(DataParallel, GptLamb) { expect_layouts_agree(small_gpt(OptimizerKind::lamb, Precision::f32)); }
TEST(DataParallel, GptMuon) { expect_layouts_agree(small_gpt(OptimizerKind::muon, Precision::f32)); }
TEST(DataParallel, ResnetLars) { expect_layouts_agree(resnet(OptimizerKind::lars, Precision::f32)); }
TEST(DataParallel, ResnetAdafactor) {
  expect_layouts_agree(resnet(OptimizerKind::adafactor, Precision::f32));
}
TEST(DataParallel, ResnetMomentum) { expect_layouts_agree(resnet(OptimizerKind::sgd, Precision::f32)); }
TEST(DataParallel, ResnetMomentumInBf16) {
  expect_layouts_agree(resnet(OptimizerKind::sgd, Precision::bf16));
}
TEST(DataParallel, EightMicroBatches) {
  expect_layouts_agree(small_gpt(OptimizerKind::adamw, Precision::f32), 8);
}

TEST(DataParallel, ANumberThatIsNotFiniteOnOneRankSkipsTheStepOnAll) {
  const TrainCase c = resnet(OptimizerKind::sgd, Precision::f32);
  for (const int zero : {0, 1, 2, 3}) {
    comm::LocalWorld world(2);
    world.run([&](comm::Communicator& comm) {
      TrainOptions options = c.options;
      options.strategy.dp = 2;
      options.strategy.zero = zero;
      comm::Mesh mesh(comm, options.strategy.mesh());
      options.mesh = &mesh;
      TrainSession session(c.graph, options);
      session.prepare({{4, 3, 16, 16}, {4}}, 1);
      std::map<std::string, Tensor> before;
      for (const std::string& name : session.states().names())
        before[name] = session.states().at(name).clone();
      Feeds feeds = tests::noise_images<4, 16>(static_cast<uint64_t>(comm.rank()));
      if (comm.rank() == 1) feeds[0].mutable_data<float>()[5] = std::numeric_limits<float>::infinity();
      EXPECT_TRUE(session.step(feeds, {.lr = 0.1f}).skipped) << zero;
      for (const auto& [name, t] : before) EXPECT_TRUE(t.same_as(session.states().at(name))) << name;
      EXPECT_FALSE(session.step(tests::noise_images<4, 16>(3), {.lr = 0.1f}).skipped) << zero;
    });
  }
}

/// Numbers of parameters by the type in which they are read, for the formula.
ZeroElements elements_of(const TrainSession& session, bool low) {
  ZeroElements e;
  for (const lower::TrainedParam& p : session.params()) {
    const auto holds = [&](const char* part) { return p.name.find(part) != std::string::npos; };
    const bool is_of_product = !holds("wte") && !holds("wpe") && !holds("ln_");
    // The embedding is also the head.
    int64_t& place = !low ? e.full : is_of_product ? e.low : holds("wte") ? e.both : e.full;
    place += tensor::element_count(p.dims);
  }
  return e;
}

TEST(DataParallel, RecomputedActivations) {
  for (const auto mode : {passes::RecomputeMode::selective, passes::RecomputeMode::full}) {
    TrainCase c = small_gpt(OptimizerKind::adamw, Precision::f32);
    c.options.strategy.recompute.mode = mode;
    expect_layouts_agree(c);
  }
}

/// Products in the forward and backward pass of a micro-batch as the device runs them, in fixed order.
std::vector<std::string> products_of(TrainSession& session, const std::vector<tensor::Dims>& shapes) {
  std::vector<std::string> list;
  const compile::Program& program = *session.programs(shapes, kReplicaMicroBatches)[0];
  for (const compile::Step& step : program.steps) {
    if (step.op == nullptr || !ir::has_products(step.op->schema)) continue;
    std::string text = base::concat(step.op->schema.name, " ", step.attrs, " by ", step.kernel, ":");
    for (const auto* ids : {&step.in, &step.out}) {
      for (const compile::SlotId id : *ids) {
        if (id == compile::kNoSlot) continue;
        const compile::Slot& slot = program.slot(id);
        text += base::concat(" ", name_of(slot.dtype), tensor::to_string(slot.dims));
      }
    }
    list.push_back(std::move(text));
  }
  std::sort(list.begin(), list.end());
  return list;
}

/// Recomputation determines what is fused into products, and GPU libraries round fused products differently:
/// all layouts must run the same products also with recomputation.
TEST(DataParallel, RecomputedProductsAreThoseOfOneRank) {
  for (const Precision precision : {Precision::f32, Precision::bf16}) {
    for (const auto mode : {passes::RecomputeMode::selective, passes::RecomputeMode::full}) {
      TrainCase c = small_gpt(OptimizerKind::adamw, precision);
      c.options.strategy.recompute.mode = mode;
      c.options.device = tests::cuda_device().value_or("cpu");
      const std::vector<tensor::Dims> shapes{{2, 8}, {2, 8}};
      TrainSession alone(c.graph, c.options);
      const std::vector<std::string> want = products_of(alone, shapes);
      for (const int zero : {0, 1, 2, 3}) {
        comm::LocalWorld world(2);
        std::vector<std::vector<std::string>> got(2);
        world.run([&](comm::Communicator& comm) {
          TrainOptions options = c.options;
          options.strategy.dp = 2;
          options.strategy.zero = zero;
          comm::Mesh mesh(comm, options.strategy.mesh());
          options.mesh = &mesh;
          TrainSession session(c.graph, options);
          got[static_cast<size_t>(comm.rank())] = products_of(session, shapes);
        });
        for (const auto& rank : got) EXPECT_TRUE(rank == want) << "zero " << zero;
      }
    }
  }
}

TEST(DataParallel, AveragesGuardsAndLossScale) {
  TrainCase c = small_gpt(OptimizerKind::adamw, Precision::bf16);
  c.options.optimizer.ema_keep = 0.9;
  c.options.guarded = true;
  c.options.scaled_loss = true;
  expect_layouts_agree(c);
}

/// The step graph of one of two ranks for a stage of ZeRO.
ir::Graph rank_graph(int zero, lower::StepPart part) {
  ir::Graph graph;
  const TrainCase c = small_gpt(OptimizerKind::adamw, Precision::f32);
  comm::LocalWorld world(2);
  world.run([&](comm::Communicator& comm) {
    TrainOptions options = c.options;
    options.strategy.dp = 2;
    options.strategy.zero = zero;
    comm::Mesh mesh(comm, options.strategy.mesh());
    options.mesh = &mesh;
    TrainSession session(c.graph, options);
    lower::StepGraph step = session.make_graph({{{2, 8}, {2, 8}}, 2, part});
    if (comm.rank() == 0) graph = std::move(step.graph);
  });
  return graph;
}

/// Makes readers of all_reduce number `skip` read its operands; false if there is no such node.
bool drop_reduction(ir::Graph& graph, size_t skip) {
  for (size_t n = 0; n < graph.nodes().size(); ++n) {
    const ir::Node node = graph.nodes()[n];
    if (node.op_name() != "all_reduce" || skip-- != 0) continue;
    for (size_t i = 0; i < node.out.size(); ++i) graph.replace_uses(node.out[i], node.in[i]);
    graph.sort();
    return true;
  }
  return false;
}

std::string refusal(const ir::Graph& graph) {
  try {
    lower::check_shards(graph);
  } catch (const base::Error& e) {
    return e.what();
  }
  return "";
}

TEST(DataParallel, AForgottenReductionIsRefused) {
  for (const int zero : {0, 1, 2, 3}) {
    for (const lower::StepPart part : {lower::StepPart::more, lower::StepPart::last}) {
      const ir::Graph graph = rank_graph(zero, part);
      EXPECT_EQ(refusal(graph), "") << zero;
      size_t dropped = 0;
      for (ir::Graph wrong = graph; drop_reduction(wrong, dropped); wrong = graph, ++dropped) {
        const std::string why = refusal(wrong);
        EXPECT_TRUE(why.find("missing") != std::string::npos || why.find("partial sum") != std::string::npos)
            << "zero " << zero << ", reduction " << dropped << ": " << why;
      }
      EXPECT_EQ(dropped > 0, part == lower::StepPart::last || zero >= 2);
    }
  }
}

TEST(DataParallel, APartThatIsTakenForTheWholeIsRefused) {
  // A slice where values should be summed has the same type as a reduce_scatter.
  for (const int zero : {1, 2, 3}) {
    ir::Graph graph = rank_graph(zero, lower::StepPart::last);
    for (size_t n = 0; n < graph.nodes().size(); ++n) {
      ir::Node& node = graph.node(ir::NodeId(static_cast<uint32_t>(n)));
      if (node.op_name() == "reduce_scatter") node.op = &ops::table().need("shard_slice");
    }
    EXPECT_NE(refusal(graph).find("partial sum"), std::string::npos) << zero;
  }
}

TEST(DataParallel, BytesOfARankAreThoseOfTheFormula) {
  for (const Precision precision : {Precision::f32, Precision::bf16}) {
    for (const int ranks : {1, 2, 4}) {
      for (const int stage : {0, 1, 2, 3}) {
        const TrainCase c = small_gpt(OptimizerKind::adamw, precision);
        comm::LocalWorld world(ranks);
        world.run([&](comm::Communicator& comm) {
          TrainOptions options = c.options;
          options.strategy.dp = ranks;
          options.strategy.zero = stage;
          comm::Mesh mesh(comm, options.strategy.mesh());
          options.mesh = &mesh;
          TrainSession session(c.graph, options);
          const std::vector<tensor::Dims> shapes{{2, 8}, {2, 8}};
          const RankBytes planned = bytes_per_rank(session, shapes, 2);
          RankBytes held = held_bytes(session);
          held.arena = planned.arena;
          EXPECT_EQ(planned, held) << planned.text() << " and " << held.text();
          const RankBytes want =
              zero_bytes(elements_of(session, precision != Precision::f32), ranks == 1 ? 0 : stage, ranks);
          EXPECT_EQ(planned.weights, want.weights) << ranks << " ranks, stage " << stage;
          EXPECT_EQ(planned.gradients, want.gradients) << ranks << " ranks, stage " << stage;
          EXPECT_EQ(planned.optimizer, want.optimizer) << ranks << " ranks, stage " << stage;
        });
      }
    }
  }
}

}  // namespace
}  // namespace trireme::engine
