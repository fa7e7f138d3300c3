// 16-bit copies of weights that the update writes and steps read: no layout casts weights within a step, and
// copies have the bits of rounded masters.
#include <gtest/gtest.h>

#include <algorithm>

#include "comm/local.h"
#include "comm/mesh.h"
#include "engine/train/state_parts.h"
#include "engine/train/train_session.h"
#include "tests/test_device.h"
#include "tests/train_steps.h"

namespace trireme::engine {
namespace {

using passes::OptimizerKind;
using passes::Precision;
using tensor::DType;
using tensor::Tensor;

struct ShapedNetwork {
  std::string name;
  ir::Graph graph;
  std::vector<tensor::Dims> shapes;
};

/// The head is the embedding, or has a separate weight.
ShapedNetwork language_network(const std::string& name, bool is_tied) {
  const std::string tied = is_tied ? "is_tied=true" : "is_tied=false";
  return {
      name,
      tests::loss_network(name, {"vocabulary=32", "positions=8", "width=32", "layers=2", "heads=2", tied}),
      {{2, 8}, {2, 8}}};
}
ShapedNetwork image_network() {
  return {"resnet",
          tests::loss_network("small_resnet", {"depth=8", "width=8", "classes=8", "size=16", "channels=3"}),
          {{4, 3, 16, 16}, {4}}};
}

TrainOptions copy_options(Precision precision, const std::string& device) {
  TrainOptions o;
  o.strategy.precision.compute = precision;
  o.optimizer.clip_norm = 0.5;
  o.device = device;
  o.threads = 1;
  return o;
}

/// The state that a slot holds, or that was gathered into it.
std::string weight_of(const compile::Program& program, compile::SlotId id) {
  const compile::Slot& slot = program.root(id);
  if (slot.kind == compile::SlotKind::state) return slot.name;
  for (const compile::Step& step : program.steps) {
    if (step.op == nullptr || step.op->schema.name != "all_gather") continue;
    for (size_t i = 0; i < step.out.size(); ++i) {
      if (step.out[i] != compile::kNoSlot && &program.root(step.out[i]) == &slot)
        return program.root(step.in[i]).name;
    }
  }
  return "";
}

/// Names of the weights that programs read in f32 and cast.
std::string cast_weights(const std::vector<const compile::Program*>& programs) {
  std::string names;
  for (const compile::Program* program : programs) {
    for (const compile::Step& step : program->steps) {
      if (step.op == nullptr || step.op->schema.name != "cast") continue;
      if (program->slot(step.in[0]).dtype != DType::f32) continue;
      if (tensor::bits_of(program->slot(step.out[0]).dtype) != 16) continue;
      const std::string name = weight_of(*program, step.in[0]);
      if (!name.empty()) names += name + " ";
    }
  }
  return names;
}

/// The casts in the programs of a step of two micro-batches, on all ranks of a layout.
std::string cast_on_ranks(const ShapedNetwork& network, TrainOptions options) {
  const int ranks = options.strategy.dp * options.strategy.tp * options.strategy.pp;
  comm::LocalWorld world(ranks);
  std::vector<std::string> found(static_cast<size_t>(ranks));
  world.run([&](comm::Communicator& comm) {
    comm::Mesh mesh(comm, options.strategy.mesh());
    TrainOptions own = options;
    own.mesh = &mesh;
    TrainSession session(network.graph, own);
    found[static_cast<size_t>(comm.rank())] = cast_weights(session.programs(network.shapes, 2));
    EXPECT_FALSE(session.copies().empty());
  });
  std::string all;
  for (const std::string& names : found) all += names;
  return all;
}

std::vector<std::string> devices() {
  std::vector<std::string> list{"cpu"};
  if (const auto there = tests::cuda_device()) list.push_back(*there);
  return list;
}

TEST(LowCopies, NoStepCastsAWeight) {
  for (const std::string& device : devices()) {
    for (const ShapedNetwork& network :
         {language_network("llama", false), language_network("gpt2", true), image_network()}) {
      for (const auto recompute : {passes::RecomputeMode::none, passes::RecomputeMode::full}) {
        TrainOptions options = copy_options(Precision::bf16, device);
        options.strategy.recompute.mode = recompute;
        TrainSession session(network.graph, options);
        EXPECT_EQ(cast_weights(session.programs(network.shapes, 1)), "") << network.name << " on " << device;
        EXPECT_EQ(cast_weights(session.programs(network.shapes, 2)), "") << network.name << " on " << device;
      }
    }
  }
}

TEST(LowCopies, NoRankCastsAWeight) {
  for (const std::string& device : devices()) {
    for (const ShapedNetwork& network : {language_network("llama", false), image_network()}) {
      for (const int zero : {0, 1, 2, 3}) {
        TrainOptions options = copy_options(Precision::bf16, device);
        options.strategy.dp = 2;
        options.strategy.zero = zero;
        EXPECT_EQ(cast_on_ranks(network, options), "") << network.name << " zero " << zero << " " << device;
      }
    }
    TrainOptions options = copy_options(Precision::f16, device);
    options.strategy.tp = 2;
    EXPECT_EQ(cast_on_ranks(language_network("llama", false), options), "")
        << "tensor parallel on " << device;
    options.strategy.tp = 1;
    options.strategy.pp = 2;
    EXPECT_EQ(cast_on_ranks(language_network("llama", false), options), "") << "pipeline on " << device;
  }
}

/// A weight that is also read in f32 is sharded in f32, so its cast remains, as the only one.
TEST(LowCopies, AnEmbeddingThatIsTheHeadIsCastWhereZeroSharesItOut) {
  const std::string each = "transformer.wte.weight ";  // the program of every micro-batch, on two ranks
  for (const int zero : {1, 2, 3}) {
    TrainOptions options = copy_options(Precision::bf16, "cpu");
    options.strategy.dp = 2;
    options.strategy.zero = zero;
    EXPECT_EQ(cast_on_ranks(language_network("gpt2", true), options), each + each + each + each)
        << "zero " << zero;
  }
}

struct Run {
  std::vector<double> losses;
  std::map<std::string, Tensor> states;
};

/// Runs four steps of two micro-batches, the third with infinite gradients; `remakes`: whether copies are
/// cast from their masters before each step.
Run train_network(const ShapedNetwork& network, const TrainOptions& options, Feeds (*feeds)(uint64_t),
                  bool remakes) {
  TrainSession session(network.graph, options);
  Run run;
  for (int step = 0; step < 4; ++step) {
    if (remakes) session.states_changed();
    const bool is_lost = step == 2;
    const StepResult r = tests::train_step(session, feeds, step, {2, 2, is_lost ? INFINITY : 1.0f / 16});
    EXPECT_EQ(r.skipped, is_lost);
    run.losses.push_back(r.loss_sum);
    const StateStore& states = std::as_const(session).states();
    for (const auto& [copy, master] : session.copies()) {
      const Tensor& held = session.scratch().at(copy);
      EXPECT_TRUE(held.same_as(converted(states.at(master), held.dtype()))) << copy << " after step " << step;
      EXPECT_FALSE(states.has(copy)) << "a checkpoint holds masters alone";
    }
  }
  const StateStore& states = std::as_const(session).states();
  for (const std::string& name : states.names()) run.states[name] = states.at(name).clone();
  return run;
}

void expect_same(const Run& a, const Run& b, const std::string& what) {
  EXPECT_EQ(a.losses, b.losses) << what;
  ASSERT_EQ(a.states.size(), b.states.size()) << what;
  for (const auto& [name, content] : a.states)
    EXPECT_TRUE(content.same_as(b.states.at(name))) << what << name;
}

TEST(LowCopies, HaveTheBitsOfACast) {
  for (const auto kind : {OptimizerKind::sgd, OptimizerKind::adam, OptimizerKind::adamw, OptimizerKind::lamb,
                          OptimizerKind::lars, OptimizerKind::adafactor, OptimizerKind::muon}) {
    for (const Precision precision : {Precision::bf16, Precision::f16}) {
      TrainOptions options = copy_options(precision, tests::device_under_test());
      options.optimizer.kind = kind;
      const std::string what = base::concat("optimizer ", static_cast<int>(kind), " ");
      expect_same(train_network(language_network("gpt2", true), options, tests::ruled_tokens<32>, false),
                  train_network(language_network("gpt2", true), options, tests::ruled_tokens<32>, true),
                  what);
      expect_same(train_network(image_network(), options, tests::noise_images<4, 16>, false),
                  train_network(image_network(), options, tests::noise_images<4, 16>, true), what);
    }
  }
}

TEST(LowCopies, FollowStatesThatAreOverwritten) {
  const ShapedNetwork network = language_network("gpt2", true);
  const TrainOptions options = copy_options(Precision::bf16, tests::device_under_test());
  const auto step = [](TrainSession& session, int number) {
    return tests::train_step(session, tests::ruled_tokens<32>, number, {1, 1, 1.0f / 16}).loss_sum;
  };
  TrainSession first(network.graph, options), second(network.graph, options);
  step(first, 0);
  step(first, 1);
  step(second, 0);
  const StateStore& states = std::as_const(first).states();
  for (const std::string& name : states.names()) second.states().set(name, states.at(name));
  second.states_changed();
  EXPECT_EQ(step(first, 2), step(second, 2));
  EXPECT_EQ(step(first, 3), step(second, 3));
}

/// Bytes of the steps with an op.
double bytes_of(const compile::Program& program, std::string_view op) {
  double bytes = 0;
  for (const compile::Step& step : program.steps) {
    if (step.op != nullptr && step.op->schema.name == op) bytes += step.cost.bytes;
  }
  return bytes;
}

/// Per weight and step, a copy costs 2 bytes in addition to the update's 28; a cast would move 6 bytes in
/// every micro-batch.
TEST(LowCopies, CostTwoBytesAWeightAndStep) {
  const auto device = tests::cuda_device();
  if (!device) GTEST_SKIP() << tests::kNoGpu;
  const ShapedNetwork network = language_network("gpt2", true);
  TrainSession session(network.graph, copy_options(Precision::bf16, *device));
  double all = 0, copied = 0;
  const auto programs = session.programs(network.shapes, 2);
  for (const lower::TrainedParam& p : session.params())
    all += static_cast<double>(tensor::element_count(p.dims));
  for (const auto& [copy, master] : session.copies())
    copied += static_cast<double>(session.scratch().type(copy).shape.elements().value_or(0));
  EXPECT_GT(copied, 0.95 * all);
  EXPECT_EQ(bytes_of(*programs[0], "adam_update"), 0);
  EXPECT_EQ(bytes_of(*programs[1], "adam_update"), 28 * all + 2 * copied);
}

}  // namespace
}  // namespace trireme::engine
