// What a training step on a device is made of: GELU at the end of products, gradients of weights in f32, few
// casts; and that it learns as without them.
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

ir::Graph network(const std::string& name) {
  std::vector<std::string> options{"width=32", "layers=2", "heads=2", "vocabulary=17", "positions=8"};
  ir::Graph g = model::zoo::build(name, options).graph;
  model::add_loss(g);
  g.sort();
  return g;
}

Feeds tokens(uint64_t stream) {
  Tensor ids = Tensor::empty(DType::i64, {2, 8}), labels = Tensor::empty(DType::i64, {2, 8});
  base::Rng rng(3, stream);
  for (size_t i = 0; i < 16; ++i) {
    ids.mutable_data<int64_t>()[i] = static_cast<int64_t>(rng.uniform() * 17);
    labels.mutable_data<int64_t>()[i] = (3 * ids.data<int64_t>()[i] + 1) % 17;
  }
  return {ids, labels};
}

struct Trained {
  std::vector<double> loss;
  std::vector<std::string> steps;  ///< of the program, as listed
  size_t count(std::string_view text) const {
    return static_cast<size_t>(std::count_if(steps.begin(), steps.end(), [&](const std::string& step) {
      return step.find(text) != std::string::npos;
    }));
  }
};

struct Way {
  std::string device;
  Precision precision = Precision::f32;
  bool finishes = true;  ///< the pass runs
  bool absorbs = true;   ///< casts vanish into kernels
  passes::RecomputeMode recompute = passes::RecomputeMode::none;
};

Trained train(const ir::Graph& graph, const Way& way) {
  TrainOptions options;
  options.device = way.device;
  options.precision.compute = way.precision;
  options.recompute = way.recompute;
  options.threads = 2;
  if (!way.finishes) options.passes.off.push_back("program_epilogue");
  if (!way.absorbs) options.passes.off.push_back("step_casts");
  options.passes.verify = true;
  TrainSession session(graph, options);
  Trained t;
  for (int s = 0; s < 4; ++s) {
    const Feeds feeds = tokens(static_cast<uint64_t>(s));
    const StepResult r = session.step(feeds, {.lr = 0.01f, .step = s + 1, .loss_weight = 1.0f / 16});
    t.loss.push_back(r.loss_sum / 16);
  }
  for (const compile::Step& step : session.programs({{2, 8}, {2, 8}}, 1)[0]->steps)
    t.steps.push_back(base::concat(step.op == nullptr ? "copy" : step.op->schema.name, " ", step.attrs, " ",
                                   step.out.size(), " ", step.kernel));
  return t;
}

void expect_near(const std::vector<double>& got, const std::vector<double>& want, double relative) {
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
  const Trained here = train(gpt, {.device = "cpu"});
  const Trained with = train(gpt, {.device = device_});
  const Trained without = train(gpt, {.device = device_, .finishes = false});
  EXPECT_EQ(with.count("gelu_grad"), 0u);
  EXPECT_EQ(with.count("gelu approximate"), 0u);
  EXPECT_EQ(with.count("linear activation=\"gelu_tanh\" 2 gemm"), size_t{kLayers});
  EXPECT_EQ(with.count("linear_grad_x activation=\"gelu_tanh\""), size_t{kLayers});
  EXPECT_EQ(without.count("gelu"), size_t{2 * kLayers});
  EXPECT_EQ(without.steps.size() - with.steps.size(), size_t{2 * kLayers});
  expect_near(with.loss, without.loss, 1e-5);
  expect_near(with.loss, here.loss, 2e-4);
}

TEST_F(DeviceStep, SixteenBitsLearnAlikeWithAndWithout) {
  const ir::Graph gpt = network("gpt2");
  for (const Precision precision : {Precision::bf16, Precision::f16}) {
    const Trained here = train(gpt, {.device = "cpu", .precision = precision});
    const Trained with = train(gpt, {.device = device_, .precision = precision});
    const Trained without = train(gpt, {.device = device_, .precision = precision, .finishes = false});
    EXPECT_EQ(with.count("gelu_grad") + with.count("gelu approximate"), 0u);
    // Of every layer's four products and the head, whose weight has no bias.
    EXPECT_EQ(with.count("linear_grad_w"), size_t{4 * kLayers + 1});
    EXPECT_EQ(with.count("wide=1"), size_t{4 * kLayers + 1});
    EXPECT_EQ(with.count("cast"), without.count("cast"));
    EXPECT_EQ(without.steps.size() - with.steps.size(), size_t{2 * kLayers});
    expect_near(with.loss, without.loss, 4e-3);
    expect_near(with.loss, here.loss, 1e-2);
  }
}

TEST_F(DeviceStep, CastsThatKernelsDoChangeNoBit) {
  for (const char* name : {"gpt2", "llama"}) {
    const ir::Graph graph = network(name);
    for (const Precision precision : {Precision::bf16, Precision::f16}) {
      Way way{.device = device_, .precision = precision, .finishes = false};
      const Trained with = train(graph, way);
      way.absorbs = false;
      const Trained without = train(graph, way);
      EXPECT_EQ(with.loss, without.loss) << name;
      // What is left rounds weights and biases.
      EXPECT_LE(with.count("cast "), 2 * with.count("linear_grad_w")) << name;
      EXPECT_GT(without.count("cast "), 3 * with.count("cast ") / 2) << name;
      EXPECT_GT(with.count("rounded="), size_t{2 * kLayers}) << name;
    }
  }
}

TEST_F(DeviceStep, CastsThatKernelsDoAreComputedAgainToo) {
  const ir::Graph gpt = network("gpt2");
  const Trained plain = train(gpt, {.device = device_, .precision = Precision::bf16});
  const Trained again =
      train(gpt, {.device = device_, .precision = Precision::bf16, .recompute = passes::RecomputeMode::full});
  EXPECT_EQ(again.loss, plain.loss);
  EXPECT_GT(again.steps.size(), plain.steps.size());
}

TEST_F(DeviceStep, WhatIsComputedAgainStaysApart) {
  const ir::Graph gpt = network("gpt2");
  const std::vector<double> want = train(gpt, {.device = device_}).loss;
  for (const auto mode : {passes::RecomputeMode::selective, passes::RecomputeMode::full}) {
    const Trained got = train(gpt, {.device = device_, .recompute = mode});
    EXPECT_EQ(got.count("gelu_grad"), 0u);
    expect_near(got.loss, want, 1e-5);
  }
}

TEST_F(DeviceStep, GeluByErfIsLeftToItsOwnKernels) {
  ir::Graph gpt = network("gpt2");
  for (size_t n = 0; n < gpt.nodes().size(); ++n) {
    ir::Node& node = gpt.node(ir::NodeId(static_cast<uint32_t>(n)));
    if (node.op_name() == "gelu") node.attrs.set("approximate", std::string("none"));
  }
  const Trained got = train(gpt, {.device = device_, .precision = Precision::bf16});
  EXPECT_EQ(got.count("gelu_tanh"), 0u);
  EXPECT_EQ(got.count("gelu_grad"), size_t{kLayers});
}

}  // namespace
}  // namespace trireme::engine
