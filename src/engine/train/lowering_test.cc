// Programs lowered for one rank without other ranks, a device or the content of weights equal those that
// ranks run.
#include <gtest/gtest.h>

#include "comm/local.h"
#include "comm/mesh.h"
#include "engine/train/train_session.h"
#include "lower/inference.h"
#include "engine/ranks/rank_model.h"
#include "model/zoo/zoo.h"
#include "passes/lists/lists.h"
#include "passes/partition/shard_rules.h"
#include "tensor/absent.h"
#include "tests/train_steps.h"

namespace trireme::engine {
namespace {

using passes::RecomputeMode;
using passes::Strategy;

/// The graph with weights without content.
ir::Graph without_weights(ir::Graph graph) {
  for (size_t i = 0; i < graph.values().size(); ++i) {
    ir::Value& v = graph.value(ir::ValueId(static_cast<uint32_t>(i)));
    if (v.kind == ir::ValueKind::param && v.data.elements() > 1)
      v.data = tensor::absent(v.data.dtype(), v.data.dims());
  }
  return graph;
}

std::string text_of(const compile::Program& p) {
  std::string text = compile::print_steps(p);
  for (const compile::SlotId id : p.states)
    text += base::concat(p.slot(id).name, " ", tensor::to_string(p.slot(id).dims), "\n");
  return base::concat(text, "arena ", p.memory.arena_bytes, "\n");
}

/// In the order of TrainSession::programs().
std::vector<std::string> lowered_alone(const ir::Graph& loss, const lower::StepTarget& target,
                                       const lower::StepKey& key) {
  base::SharedCache packs;
  lower::StepLowering lowering(lower::training_form(without_weights(loss), target.options.freeze), target,
                               packs);
  std::vector<std::string> texts;
  if (lowering.stages() > 1) {
    const lower::LoweredPipeline made = lowering.lower_pipeline(key);
    for (const lower::LoweredStage& stage : made.chunks) {
      for (const lower::StageProgram* p : {&stage.forward, &stage.backward, &stage.weights}) {
        if (p->program != nullptr) texts.push_back(text_of(*p->program));
      }
    }
    texts.push_back(text_of(*made.update.program));
    return texts;
  }
  for (const lower::StepPart part : {lower::StepPart::more, lower::StepPart::last})
    texts.push_back(text_of(*lowering.lower({key.shapes, key.micro_batches, part}).program));
  return texts;
}

/// A vocabulary that no axis divides, so that parts have unequal lengths.
ir::Graph uneven_loss() {
  return tests::loss_network(
      "gpt2", {"vocabulary=37", "positions=8", "width=32", "layers=4", "heads=4", "dropout=0.1"});
}

void expect_same_programs(TrainOptions options, const Strategy& wanted) {
  const ir::Graph loss = uneven_loss();
  options.threads = 1;
  options.strategy = options.strategy.over(passes::choose_kv_ranks(loss, wanted));
  const lower::StepKey key{{{2, 8}, {2, 8}}, 2, lower::StepPart::update};
  comm::LocalWorld world(wanted.world());
  world.run([&](comm::Communicator& comm) {
    TrainOptions own = options;
    comm::Mesh mesh(comm, options.strategy.mesh());
    own.mesh = &mesh;
    TrainSession session(loss, own);
    std::vector<std::string> want;
    for (const compile::Program* p : session.programs(key.shapes, key.micro_batches))
      want.push_back(text_of(*p));
    const lower::RankPlace place{mesh.shape(), mesh.coordinates()};
    EXPECT_EQ(lowered_alone(loss, {options, place, {.threads = 1}}, key), want)
        << "rank " << comm.rank() << ": dp " << wanted.dp << " tp " << wanted.tp << " pp " << wanted.pp
        << " zero " << wanted.zero << " recompute " << static_cast<int>(options.strategy.recompute.mode);
  });
}

TEST(Lowering, OneRankAloneGetsTheProgramsThatTheRanksRun) {
  using Schedule = passes::PipelineSchedule;
  for (const Strategy& s :
       {Strategy{.dp = 2}, Strategy{.tp = 4}, Strategy{.dp = 2, .tp = 2, .zero = 3},
        Strategy{.dp = 2, .tp = 2, .pp = 2, .zero = 1}, Strategy{.tp = 2, .sequence = true},
        Strategy{.tp = 2, .pp = 2, .schedule = Schedule::zero_bubble},
        Strategy{.pp = 2, .schedule = Schedule::interleaved, .chunks = 2}}) {
    for (const RecomputeMode mode : {RecomputeMode::none, RecomputeMode::selective, RecomputeMode::full}) {
      TrainOptions options;
      options.strategy.recompute.mode = mode;
      expect_same_programs(options, s);
    }
    TrainOptions low;
    low.strategy.precision.compute = passes::Precision::bf16;
    low.strategy.recompute.activation_bytes = 800'000;
    expect_same_programs(low, s);
  }
}

/// A budget that suffices for the smaller parts of the last rank but not for those of the first.
TEST(Lowering, ARankTakesThePlanOfTheFirstThoughItsOwnPartsAreSmaller) {
  TrainOptions options;
  options.strategy = {.tp = 4};
  const tensor::MeshShape mesh = options.strategy.mesh();
  const auto arena = [&](int rank) {
    base::SharedCache packs;
    lower::StepLowering lowering(lower::training_form(uneven_loss(), {}),
                                 {options, {mesh, mesh.coordinates(rank)}, {.threads = 1}}, packs);
    return lowering.lower({{{2, 8}, {2, 8}}, 2, lower::StepPart::last}).program->memory.arena_bytes;
  };
  ASSERT_GT(arena(0), arena(3));
  options.strategy.recompute.activation_bytes = arena(3);
  expect_same_programs(options, options.strategy);
}

TEST(Lowering, ARankOfAModelIsLoweredWithoutTheOthers) {
  const model::Model model = model::zoo::build(
      "llama", std::vector<std::string>{"vocabulary=37", "width=64", "layers=4", "heads=4", "inner=128"});
  const auto prepared = std::make_shared<const PreparedModel>(model.graph);
  const Strategy strategy = passes::choose_kv_ranks(prepared->graph(), {.tp = 2, .pp = 2});
  for (int rank = 0; rank < 4; ++rank) {
    RankModel of_session(prepared, {.threads = 1, .strategy = strategy}, rank, "cpu");
    lower::RankPart part(strategy, rank);
    base::SharedCache packs;
    const auto alone = lower::lower_inference(part.of(passes::bind_shapes(prepared->graph(), {{1, 8}})).graph,
                                              {}, packs, prepared->graph());
    EXPECT_EQ(text_of(*alone.program), text_of(*of_session.program_for({{1, 8}})->program));
  }
}

TEST(Lowering, AGptOf175BillionParametersIsLoweredWithoutMemoryForThem) {
  model::AbsentParams absent;
  const std::vector<std::string> sizes{"vocabulary=50304", "positions=2048", "width=12288",
                                       "layers=96",        "heads=96",       "is_tied=false"};
  model::Model model = model::zoo::build("gpt2", sizes, &absent);
  model::add_loss(model.graph);
  model.graph.sort();
  lower::StepOptions options;
  options.strategy = {.dp = 8, .tp = 8, .zero = 1};
  options.strategy.precision.compute = passes::Precision::bf16;
  const tensor::MeshShape mesh = options.strategy.mesh();
  base::SharedCache packs;
  lower::TrainingForm form = lower::training_form(std::move(model.graph), {});
  int64_t parameters = 0;
  for (const lower::TrainedParam& p : form.params) parameters += tensor::element_count(p.dims);
  EXPECT_NEAR(static_cast<double>(parameters), 175e9, 1e9);
  lower::StepLowering lowering(
      std::move(form), {options, {mesh, mesh.coordinates(13)}, {.on = tensor::DeviceKind::cuda}}, packs);
  const auto step = lowering.lower({{{1, 2048}, {1, 2048}}, 1, lower::StepPart::last});
  // 6 operations per parameter and token, an eighth of them on this rank, plus attention.
  const double products = 6.0 * static_cast<double>(parameters) * 2048 / 8;
  EXPECT_GT(step.program->cost().flop, products);
  EXPECT_LT(step.program->cost().flop, 1.1 * products);
  // 16-bit copies of an eighth of the weights, and f32 masters and moments of a 64th (ZeRO 1).
  const double states = static_cast<double>(parameters) * (2.0 / 8 + 12.0 / 64);
  EXPECT_NEAR(static_cast<double>(step.program->memory.state_bytes), states, 0.01 * states);
}

}  // namespace
}  // namespace trireme::engine
