// The composition of a training step on a device: GELU fused into products, weight gradients in f32, few
// casts, vocabulary scores in aligned rows; and that the step learns as well as without these passes.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/rng.h"
#include "engine/train/train_session.h"
#include "model/loss.h"
#include "model/zoo/zoo.h"
#include "tests/test_device.h"

namespace trireme::engine {
namespace {

using passes::Precision;
using tensor::DType;
using tensor::Tensor;

constexpr int64_t kLayers = 2;

ir::Graph network(const std::string& name, int vocabulary = 17) {
  std::vector<std::string> options{"width=32", "layers=2", "heads=2", base::concat("vocabulary=", vocabulary),
                                   "positions=8"};
  ir::Graph g = model::zoo::build(name, options).graph;
  model::add_loss(g);
  g.sort();
  return g;
}

Feeds rule_tokens(uint64_t stream) {
  Tensor ids = Tensor::empty(DType::i64, {2, 8}), labels = Tensor::empty(DType::i64, {2, 8});
  base::Rng rng(3, stream);
  for (size_t i = 0; i < 16; ++i) {
    ids.mutable_data<int64_t>()[i] = static_cast<int64_t>(rng.uniform() * 17);
    labels.mutable_data<int64_t>()[i] = (3 * ids.data<int64_t>()[i] + 1) % 17;
  }
  return {ids, labels};
}

struct DeviceRun {
  std::vector<double> loss;
  std::vector<std::string> steps;   ///< as in the program's listing
  std::vector<std::string> states;  ///< names and types of all trained or kept values
  size_t count(std::string_view text) const {
    return static_cast<size_t>(std::count_if(steps.begin(), steps.end(), [&](const std::string& step) {
      return step.find(text) != std::string::npos;
    }));
  }
};

struct Way {
  std::string device;
  Precision precision = Precision::f32;
  bool finishes = true;  ///< runs the pass that fuses GELU into products
  bool absorbs = true;   ///< fuses casts into kernels
  bool pads = true;      ///< pads vocabulary scores
  passes::RecomputeMode recompute = passes::RecomputeMode::none;
};

DeviceRun train_way(const ir::Graph& graph, const Way& way) {
  TrainOptions options;
  options.device = way.device;
  options.strategy.precision.compute = way.precision;
  options.strategy.recompute.mode = way.recompute;
  options.threads = 2;
  if (!way.finishes) options.passes.off.push_back("program_epilogue");
  if (!way.absorbs) options.passes.off.push_back("step_casts");
  if (!way.pads) options.passes.off.push_back("step_scores");
  options.passes.verify = true;
  TrainSession session(graph, options);
  DeviceRun t;
  for (int s = 0; s < 4; ++s) {
    const Feeds feeds = rule_tokens(static_cast<uint64_t>(s));
    const StepResult r = session.step(feeds, {.lr = 0.01f, .step = s + 1, .loss_weight = 1.0f / 16});
    t.loss.push_back(r.loss_sum / 16);
  }
  for (const compile::Step& step : session.programs({{2, 8}, {2, 8}}, 1)[0]->steps)
    t.steps.push_back(base::concat(step.op == nullptr ? "copy" : step.op->schema.name, " ", step.attrs, " ",
                                   step.out.size(), " ", step.kernel));
  const StateStore& states = std::as_const(session).states();
  for (const std::string& name : states.names())
    t.states.push_back(name + " " + states.type(name).to_string());
  return t;
}

void expect_losses_near(const std::vector<double>& got, const std::vector<double>& want, double relative) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], relative * want[i]) << "step " << i;
}

class DeviceStep : public testing::Test {
 protected:
  void SetUp() override {
    const auto there = tests::cuda_device();
    if (!there) GTEST_SKIP() << tests::kNoGpu;
    device_ = *there;
  }
  std::string device_;
};

TEST_F(DeviceStep, GeluEndsTheProductsBesideIt) {
  const ir::Graph gpt = network("gpt2");
  const DeviceRun here = train_way(gpt, {.device = "cpu"});
  const DeviceRun with = train_way(gpt, {.device = device_});
  const DeviceRun without = train_way(gpt, {.device = device_, .finishes = false});
  EXPECT_EQ(with.count("gelu_grad"), 0u);
  EXPECT_EQ(with.count("gelu approximate"), 0u);
  EXPECT_EQ(with.count("linear activation=\"gelu_tanh\" 2 gemm"), size_t{kLayers});
  EXPECT_EQ(with.count("linear_grad_x activation=\"gelu_tanh\""), size_t{kLayers});
  EXPECT_EQ(without.count("gelu"), size_t{2 * kLayers});
  EXPECT_EQ(without.steps.size() - with.steps.size(), size_t{2 * kLayers});
  expect_losses_near(with.loss, without.loss, 1e-5);
  expect_losses_near(with.loss, here.loss, 2e-4);
}

TEST_F(DeviceStep, SixteenBitsLearnAlikeWithAndWithout) {
  const ir::Graph gpt = network("gpt2");
  const DeviceRun f32 = train_way(gpt, {.device = "cpu"});
  for (const Precision precision : {Precision::bf16, Precision::f16}) {
    const DeviceRun here = train_way(gpt, {.device = "cpu", .precision = precision});
    const DeviceRun with = train_way(gpt, {.device = device_, .precision = precision});
    const DeviceRun without = train_way(gpt, {.device = device_, .precision = precision, .finishes = false});
    EXPECT_EQ(with.count("gelu_grad") + with.count("gelu approximate"), 0u);
    // Four products in each layer, and the head, whose weight has no bias.
    EXPECT_EQ(with.count("linear_grad_w"), size_t{4 * kLayers + 1});
    EXPECT_EQ(with.count("wide=1"), size_t{4 * kLayers + 1});
    EXPECT_EQ(with.count("cast"), without.count("cast"));
    EXPECT_EQ(without.steps.size() - with.steps.size(), size_t{2 * kLayers});
    // The two runs round at different places, and four steps of Adam amplify a last bit unpredictably. So
    // each must be as near to f32 as 16 bits on the CPU are, and they must be as near to each other.
    for (const std::vector<double>& loss : {with.loss, without.loss, here.loss})
      expect_losses_near(loss, f32.loss, 1e-2);
    expect_losses_near(with.loss, without.loss, 1e-2);
  }
}

TEST_F(DeviceStep, CastsThatKernelsDoChangeNoBit) {
  for (const char* name : {"gpt2", "llama"}) {
    const ir::Graph graph = network(name);
    for (const Precision precision : {Precision::bf16, Precision::f16}) {
      Way way{.device = device_, .precision = precision, .finishes = false};
      const DeviceRun with = train_way(graph, way);
      way.absorbs = false;
      const DeviceRun without = train_way(graph, way);
      EXPECT_EQ(with.loss, without.loss) << name;
      EXPECT_EQ(with.count("cast "), 0u) << name;
      EXPECT_GT(without.count("cast "), size_t{4 * kLayers}) << name;
      EXPECT_GT(with.count("rounded="), size_t{2 * kLayers}) << name;
    }
  }
}

TEST_F(DeviceStep, CastsThatKernelsDoAreComputedAgainToo) {
  const ir::Graph gpt = network("gpt2");
  const DeviceRun plain = train_way(gpt, {.device = device_, .precision = Precision::bf16});
  const DeviceRun again = train_way(
      gpt, {.device = device_, .precision = Precision::bf16, .recompute = passes::RecomputeMode::full});
  EXPECT_EQ(again.loss, plain.loss);
  EXPECT_GT(again.steps.size(), plain.steps.size());
}

TEST_F(DeviceStep, WhatIsComputedAgainStaysApart) {
  const ir::Graph gpt = network("gpt2");
  const std::vector<double> want = train_way(gpt, {.device = device_}).loss;
  for (const auto mode : {passes::RecomputeMode::selective, passes::RecomputeMode::full}) {
    const DeviceRun got = train_way(gpt, {.device = device_, .recompute = mode});
    EXPECT_EQ(got.count("gelu_grad"), 0u);
    expect_losses_near(got.loss, want, 1e-5);
  }
}

TEST_F(DeviceStep, ScoresOfAVocabularyStandInAlignedRows) {
  // 300 classes are padded to 320 columns, of a separate weight (llama) or of the embedding (gpt2).
  for (const char* name : {"gpt2", "llama"}) {
    const ir::Graph graph = network(name, 300);
    for (const Precision precision : {Precision::f32, Precision::bf16}) {
      const DeviceRun here = train_way(graph, {.device = "cpu", .precision = precision});
      const DeviceRun with = train_way(graph, {.device = device_, .precision = precision});
      const DeviceRun without = train_way(graph, {.device = device_, .precision = precision, .pads = false});
      EXPECT_EQ(here.count("padded="), 0u);
      EXPECT_EQ(without.count("padded="), 0u);
      EXPECT_EQ(with.count("padded=20"), 2u) << name;  // the loss and its gradient
      EXPECT_EQ(with.count("pad "), 1u);               // forward and backward share a padded weight
      EXPECT_EQ(with.states, without.states);
      expect_losses_near(with.loss, without.loss, precision == Precision::f32 ? 1e-6 : 1e-3);
      expect_losses_near(with.loss, here.loss, precision == Precision::f32 ? 2e-4 : 1e-2);
    }
  }
}

TEST_F(DeviceStep, GeluByErfIsLeftToItsOwnKernels) {
  ir::Graph gpt = network("gpt2");
  for (size_t n = 0; n < gpt.nodes().size(); ++n) {
    ir::Node& node = gpt.node(ir::NodeId(static_cast<uint32_t>(n)));
    if (node.op_name() == "gelu") node.attrs.set("approximate", std::string("none"));
  }
  const DeviceRun got = train_way(gpt, {.device = device_, .precision = Precision::bf16});
  EXPECT_EQ(got.count("gelu_tanh"), 0u);
  EXPECT_EQ(got.count("gelu_grad"), size_t{kLayers});
}

/// Losses of a few steps of a small ResNet in bf16. `off`: passes that do not run.
std::vector<double> resnet_losses(const std::string& device, std::vector<std::string> off = {}) {
  const std::vector<std::string> options{"width=8", "channels=3", "size=16", "classes=10"};
  ir::Graph resnet = model::zoo::build("resnet14", options).graph;
  model::add_loss(resnet);
  TrainOptions o;
  o.device = device;
  o.strategy.precision.compute = Precision::bf16;
  o.optimizer.kind = passes::OptimizerKind::sgd;
  o.passes.verify = true;
  o.passes.off = std::move(off);
  TrainSession session(resnet, o);
  Tensor images = Tensor::empty(DType::f32, {8, 3, 16, 16}), labels = Tensor::empty(DType::i64, {8});
  base::Rng rng(5);
  for (float& v : images.mutable_data<float>()) v = static_cast<float>(rng.normal());
  for (int64_t& v : labels.mutable_data<int64_t>()) v = static_cast<int64_t>(rng.below(10));
  std::vector<double> losses;
  for (int s = 0; s < 4; ++s) {
    const StepResult r =
        session.step({images, labels}, {.lr = 0.05f, .step = s + 1, .loss_weight = 1.0f / 8});
    losses.push_back(r.loss_sum / 8);
  }
  return losses;
}

TEST_F(DeviceStep, AResNetInSixteenBitsLearnsAsOnTheCpu) {
  const std::vector<double> here = resnet_losses("cpu"), there = resnet_losses(device_);
  expect_losses_near(there, here, 3e-2);
  EXPECT_LT(there.back(), 0.9 * there.front());
}

TEST_F(DeviceStep, TheStemOfAResNetLearnsWithEightChannelsAsWithThree) {
  expect_losses_near(resnet_losses(device_), resnet_losses(device_, {"step_stems"}), 1e-2);
}

/// The casts of a program by what they read: constants and states, inputs, gradients, or others.
struct Casts {
  int of_weights = 0, of_inputs = 0, of_gradients = 0, of_others = 0;
  std::string others;
};

/// Weight gradients of convolutions reach the update in f32; that of the stem is cut to its real channels
/// before.
bool is_of_weights_gradient(const compile::Program& program, const compile::Step& cast) {
  compile::SlotId from = cast.in[0];
  for (auto step = program.steps.rbegin(); step != program.steps.rend(); ++step) {
    if (step->op == nullptr || std::find(step->out.begin(), step->out.end(), from) == step->out.end())
      continue;
    if (step->op->schema.name != "slice") return step->op->schema.name.ends_with("_grad_w");
    from = step->in[0];
  }
  return false;
}

Casts casts_of(const compile::Program& program) {
  Casts casts;
  for (const compile::Step& step : program.steps) {
    if (step.op == nullptr || step.op->schema.name != "cast") continue;
    const compile::Slot& from = program.slot(step.in[0]);
    if (from.kind == compile::SlotKind::state) {
      ++casts.of_weights;
    } else if (from.kind == compile::SlotKind::input) {
      ++casts.of_inputs;
    } else if (is_of_weights_gradient(program, step)) {
      ++casts.of_gradients;
    } else {
      ++casts.of_others;
      casts.others += base::concat(step.from, " ", from.dims.size(), " dims of ", name_of(from.dtype), "\n");
    }
  }
  return casts;
}

/// A step of ResNet-50 over 16 images in bf16, compiled but not run. `keep`: ops that remain in f32.
std::unique_ptr<TrainSession> resnet_session(const std::string& device, std::vector<std::string> keep) {
  const std::vector<std::string> size{"size=64", "classes=10"};
  ir::Graph resnet = model::zoo::build("resnet50", size).graph;
  model::add_loss(resnet);
  TrainOptions options;
  options.device = device;
  options.strategy.precision = {.compute = Precision::bf16, .keep = std::move(keep)};
  options.optimizer.kind = passes::OptimizerKind::sgd;
  return std::make_unique<TrainSession>(resnet, options);
}
const std::vector<tensor::Dims> kImages{{16, 3, 64, 64}, {16}};

/// Bytes and number of the steps with an op.
std::pair<double, int> count_of(const compile::Program& program, std::string_view op) {
  std::pair<double, int> count{0, 0};
  for (const compile::Step& step : program.steps) {
    if (step.op == nullptr || !step.op->schema.name.starts_with(op)) continue;
    count.first += step.cost.bytes;
    ++count.second;
  }
  return count;
}

TEST_F(DeviceStep, ActivationsOfAResNetStayInSixteenBits) {
  const auto session = resnet_session(device_, {});
  const compile::Program& program = *session->programs(kImages, 1)[0];
  const Casts casts = casts_of(program);
  EXPECT_EQ(casts.of_others, 0) << casts.others;
  EXPECT_EQ(casts.of_inputs, 1);
  EXPECT_EQ(casts.of_weights, 0);
  // For 53 convolutions, the head and its bias the update writes copies that the next step reads.
  EXPECT_EQ(session->copies().size(), 55u);
  double weights = 0, copied = 0;
  for (const lower::TrainedParam& p : session->params())
    weights += static_cast<double>(tensor::element_count(p.dims));
  for (const auto& [copy, master] : session->copies())
    copied += static_cast<double>(session->scratch().type(copy).shape.elements().value_or(0));
  EXPECT_EQ(count_of(program, "momentum_update").first, 20 * weights + 2 * copied);
  for (const compile::Step& step : program.steps) {
    const bool reads_images = step.op != nullptr && (step.op->schema.name == "conv_nhwc" ||
                                                     step.op->schema.name == "conv_nhwc_grad_w");
    if (reads_images) {
      EXPECT_EQ(program.slot(step.in[0]).dims.back() % 8, 0) << step.from;
    }
    if (step.op == nullptr || !step.op->schema.name.starts_with("batch_norm")) continue;
    EXPECT_EQ(program.slot(step.in[0]).dtype, DType::bf16) << step.from;
    EXPECT_EQ(program.slot(step.in[2]).dtype, DType::f32) << step.from;
    EXPECT_EQ(program.slot(step.out[0]).dtype, DType::bf16) << step.from;
  }
  // With norms in f32 every activation is cast to f32 and back.
  const auto wide = resnet_session(device_, {"batch_norm_train"});
  const compile::Program& before = *wide->programs(kImages, 1)[0];
  EXPECT_LT(count_of(program, "batch_norm").first, 0.6 * count_of(before, "batch_norm").first);
  EXPECT_LT(count_of(program, "cast").second + 100, count_of(before, "cast").second);
  EXPECT_LT(program.steps.size() + 100, before.steps.size());
}

}  // namespace
}  // namespace trireme::engine
