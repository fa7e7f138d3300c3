// A training session learns, with the same bits for every number of threads, and with recomputed activations.
#include "engine/train/train_session.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "base/rng.h"
#include "engine/session/session.h"
#include "model/builder.h"
#include "passes/lists/lists.h"
#include "tests/test_device.h"

namespace trireme::engine {
namespace {

using model::Builder;
using tensor::DType;
using tensor::Tensor;

Tensor random(tensor::Dims dims, uint64_t stream, double deviation = 1) {
  Tensor t = Tensor::empty(DType::f32, std::move(dims));
  base::Rng rng(11, stream);
  for (float& v : t.mutable_data<float>()) v = static_cast<float>(deviation * rng.normal());
  return t;
}

/// A classifier of [batch, 12] into 5 classes with two hidden layers of 24.
ir::Graph classifier() {
  ir::Graph g;
  g.name = "classifier";
  const auto batch = tensor::Dim::symbol("batch");
  Builder b(g);
  ir::ValueId x = g.add_input("x", {DType::f32, {batch, 12}});
  const ir::ValueId labels = g.add_input("labels", {DType::i64, {batch}});
  const std::vector<int64_t> widths{12, 24, 24, 5};
  for (size_t i = 0; i < 3; ++i) {
    const std::string name = "layer" + std::to_string(i);
    Builder layer = b.within(name);
    const ir::ValueId w = layer.param(name + ".weight", random({widths[i + 1], widths[i]}, i, 0.3));
    const ir::ValueId bias = layer.param(name + ".bias", random({widths[i + 1]}, 10 + i, 0.1));
    x = layer.op("gemm", {x, w, bias}, {{"transB", int64_t{1}}});
    if (i < 2) x = layer.op("relu", {x});
  }
  const auto loss = b.ops("cross_entropy", {x, labels}, {}, 4);
  g.add_output(loss[0], "loss_sum");
  g.add_output(loss[2], "count");
  g.add_output(loss[3], "correct");
  g.add_output(x, "logits");
  g.sort();
  return g;
}

Feeds batch_of(int64_t rows, uint64_t stream) {
  const Tensor x = random({rows, 12}, 100 + stream);
  Tensor labels = Tensor::empty(DType::i64, {rows});
  for (int64_t i = 0; i < rows; ++i) {
    const auto row = x.data<float>().subspan(static_cast<size_t>(12 * i), 5);
    labels.mutable_data<int64_t>()[static_cast<size_t>(i)] =
        std::max_element(row.begin(), row.end()) - row.begin();  // a rule that can be learned
  }
  return {x, labels};
}

TrainOptions options_with(int threads) {
  TrainOptions options;
  options.optimizer.kind = passes::OptimizerKind::adamw;
  options.device = tests::device_under_test();
  options.threads = threads;
  return options;
}

TrainOptions options_on(const std::string& device) {
  TrainOptions options = options_with(2);
  options.device = device;
  return options;
}

/// Loss per target of `steps` steps of `micro` micro-batches of `rows` rows each.
std::vector<double> losses(TrainSession& session, int steps, int micro, int64_t rows) {
  std::vector<double> out;
  for (int s = 0; s < steps; ++s) {
    std::vector<Feeds> feeds;
    for (int m = 0; m < micro; ++m) feeds.push_back(batch_of(rows, static_cast<uint64_t>(s * micro + m)));
    StepInputs inputs;
    inputs.lr = 0.01f;
    inputs.step = s + 1;
    inputs.draw = s;
    inputs.loss_weight = 1.0f / static_cast<float>(micro * rows);
    const StepResult r = session.step(feeds, inputs);
    EXPECT_EQ(r.count, micro * rows);
    out.push_back(r.loss_sum / r.count);
  }
  return out;
}

TEST(TrainSession, LearnsARule) {
  TrainSession session(classifier(), options_with(2));
  const auto loss = losses(session, 200, 1, 64);
  EXPECT_GT(loss.front(), std::log(5.0));
  EXPECT_LT(loss.back(), 0.6);
}

void expect_tensors_near(const Tensor& got, const Tensor& want, const std::string& what) {
  const auto a = got.to_doubles(), b = want.to_doubles();
  ASSERT_EQ(a.size(), b.size()) << what;
  for (size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], 2e-4 * (1 + std::abs(b[i]))) << what;
}

TEST(TrainSession, OnADeviceItFollowsTheCpu) {
  const auto device = tests::cuda_device();
  if (!device) GTEST_SKIP() << tests::kNoGpu;
  TrainSession host(classifier(), options_on("cpu")), there(classifier(), options_on(*device));
  const auto want = losses(host, 12, 2, 16), got = losses(there, 12, 2, 16);
  for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-4 * (1 + want[i])) << "step " << i;
  for (const std::string& name : host.states().names())
    expect_tensors_near(there.states().at(name), host.states().at(name), name);
}

TEST(TrainSession, StatesOfADeviceAreReadWrittenAndServed) {
  const auto device = tests::cuda_device();
  if (!device) GTEST_SKIP() << tests::kNoGpu;
  TrainSession session(classifier(), options_on(*device));
  losses(session, 3, 1, 16);
  std::map<std::string, Tensor> kept;
  for (const std::string& name : session.states().names()) kept[name] = session.states().at(name).clone();
  const auto after_three = losses(session, 2, 1, 16);
  EXPECT_FALSE(session.states().at("layer0.weight").same_as(kept.at("layer0.weight")));
  for (const auto& [name, content] : kept) session.states().set(name, content);
  EXPECT_EQ(losses(session, 2, 1, 16), after_three);  // steps start from values written there
  const ir::Graph trained = session.trained_graph();
  const Feeds feeds = batch_of(8, 7);
  Session here(std::make_shared<const PreparedModel>(trained), {.threads = 1});
  Session there(std::make_shared<const PreparedModel>(trained), {.device = *device, .threads = 1});
  expect_tensors_near(there.run(feeds)[0], here.run(feeds)[0], "evaluation");
}

TEST(TrainSession, GivesTheSameBitsForEveryThreadCount) {
  TrainSession one(classifier(), options_with(1)), three(classifier(), options_with(3));
  EXPECT_EQ(losses(one, 12, 1, 33), losses(three, 12, 1, 33));
  for (const std::string& name : one.states().names()) {
    EXPECT_TRUE(one.states().at(name).same_as(three.states().at(name))) << name;
  }
}

TEST(TrainSession, AccumulatesMicroBatches) {
  TrainSession whole(classifier(), options_with(2)), parts(classifier(), options_with(2));
  const Feeds all = batch_of(32, 1);
  std::vector<Feeds> quarters;
  for (int64_t i = 0; i < 4; ++i)
    quarters.push_back({all[0].rows(8 * i, 8 * i + 8), all[1].rows(8 * i, 8 * i + 8)});
  StepInputs inputs;
  inputs.lr = 0.01f;
  inputs.loss_weight = 1.0f / 32;
  const StepResult a = whole.step(all, inputs), b = parts.step(quarters, inputs);
  EXPECT_NEAR(a.loss_sum, b.loss_sum, 1e-4);
  EXPECT_NEAR(a.grad_norm, b.grad_norm, 1e-5);
  for (const lower::TrainedParam& p : whole.params()) {
    const auto x = whole.states().at(p.name).data<float>(), y = parts.states().at(p.name).data<float>();
    for (size_t i = 0; i < x.size(); ++i) ASSERT_NEAR(x[i], y[i], 2e-5) << p.name;
  }
}

TEST(TrainSession, RecomputesToTheSameBits) {
  TrainSession plain(classifier(), options_with(2));
  const std::vector<double> want = losses(plain, 6, 1, 64);
  for (passes::RecomputeMode mode : {passes::RecomputeMode::selective, passes::RecomputeMode::full}) {
    TrainOptions options = options_with(2);
    options.strategy.recompute.mode = mode;
    TrainSession session(classifier(), options);
    EXPECT_EQ(losses(session, 6, 1, 64), want) << passes::to_string(mode);
  }
}

TEST(TrainSession, LearnsInBf16) {
  TrainOptions options = options_with(2);
  options.strategy.precision.compute = passes::Precision::bf16;
  TrainSession session(classifier(), options);
  const auto loss = losses(session, 200, 1, 64);
  EXPECT_LT(loss.back(), 0.6);
  EXPECT_NE(session.precision_text().find("linear"), std::string::npos);
}

TEST(TrainSession, RefusesABudgetNothingFits) {
  TrainOptions options = options_with(1);
  options.strategy.recompute.activation_bytes = 64;
  TrainSession session(classifier(), options);
  EXPECT_THROW(losses(session, 1, 1, 64), base::Error);
}

/// Micro-batches of five sizes in turn, several of them in one step, with room for two programs or for all:
/// evicted programs are lowered again, and results do not depend on it.
TEST(TrainSession, LetsTheLeastRecentlyUsedProgramsGo) {
  const int64_t sizes[] = {8, 3, 5, 16, 2};
  const auto run = [&](size_t most, int& lowered) {
    TrainOptions options = options_with(2);
    options.max_programs = most;
    const std::string first_pass = passes::step_passes(tensor::DeviceKind::cpu).front().name;
    options.passes.after = [&](const passes::PassRecord& r, const ir::Graph&) {
      lowered += r.name == first_pass ? 1 : 0;
    };
    TrainSession session(classifier(), options);
    std::vector<double> losses;
    for (uint64_t s = 0; s < 10; ++s) {
      const std::vector<Feeds> parts{batch_of(sizes[s % 5], s), batch_of(sizes[(s + 1) % 5], s + 50),
                                     batch_of(sizes[(s + 2) % 5], s + 90)};
      StepInputs inputs;
      inputs.lr = 0.01f;
      inputs.step = static_cast<int64_t>(s) + 1;
      losses.push_back(session.step(parts, inputs).loss_sum);
      // Only looking at a program does not count as use, and needs no lowering.
      session.programs({parts[2][0].dims(), parts[2][1].dims()}, 3);
    }
    return losses;
  };
  int few = 0, all = 0;
  const std::vector<double> want = run(64, all);
  EXPECT_EQ(run(2, few), want);
  EXPECT_EQ(all, 5 * 2);  // each size as one part among others, and as the last part with the update
  EXPECT_GT(few, 2 * all);
}

TEST(TrainSession, LeavesFrozenParamsAlone) {
  TrainOptions options = options_with(1);
  options.freeze = {"layer0"};
  const ir::Graph graph = classifier();
  TrainSession session(graph, options);
  losses(session, 3, 1, 16);
  EXPECT_FALSE(session.states().has("layer0.weight"));
  const ir::Graph trained = session.trained_graph();
  for (const ir::Value& v : trained.values()) {
    if (v.name != "layer0.weight") continue;
    EXPECT_TRUE(v.data.same_as(random({24, 12}, 0, 0.3)));
  }
}

TEST(TrainSession, RefusesWrongFeedsAndKeepsItsStates) {
  TrainSession session(classifier(), options_with(1));
  const Tensor before = session.states().at("layer1.weight").clone();
  Feeds feeds = batch_of(8, 1);
  feeds[0] = random({8, 11}, 3);
  EXPECT_THROW(session.step(feeds, {}), base::Error);
  EXPECT_THROW(session.step(Feeds{feeds[1]}, {}), base::Error);
  feeds = batch_of(8, 1);
  feeds[1].mutable_data<int64_t>()[3] = 5;  // there are classes 0 to 4
  EXPECT_THROW(session.step(feeds, {}), base::Error);
  EXPECT_TRUE(session.states().at("layer1.weight").same_as(before));
}

TEST(TrainSession, ServesWhatItTrained) {
  TrainSession session(classifier(), options_with(2));
  losses(session, 20, 1, 64);
  Session serving(std::make_shared<PreparedModel>(session.trained_graph()));
  const Feeds feeds = batch_of(64, 7);
  const double served = serving.run(feeds)[0].to_doubles()[0];
  StepInputs inputs;  // with a learning rate of 0 the step changes no weights
  const StepResult measured = session.step(feeds, inputs);
  EXPECT_NEAR(served, measured.loss_sum, 1e-4 * std::abs(served));
}

/// Dropout of [width, batch]: a network whose batch is not the first dimension.
ir::Graph dropped_columns() {
  ir::Graph g;
  Builder b(g);
  const ir::ValueId x = g.add_input("x", {DType::f32, {tensor::Dim::symbol("batch"), 12}});
  const ir::ValueId h = b.op("matmul", {x, b.param("w", random({12, 6}, 1))});
  const ir::ValueId columns = b.op("transpose", {h}, {{"perm", std::vector<int64_t>{1, 0}}});
  const ir::ValueId y = b.op("dropout", {columns, b.scalar(0.5f)});
  g.add_output(b.op("reduce_sum", {b.op("mul", {y, y})}, {{"keepdims", int64_t{0}}}), "loss_sum");
  g.sort();
  return g;
}

TEST(TrainSession, MasksAreNumberedByTheRowsOfTheMicroBatch) {
  TrainSession session(dropped_columns(), options_with(1));
  const lower::StepGraph step = session.make_graph({{{4, 12}}, 2, lower::StepPart::last});
  int dropouts = 0;
  for (const ir::Node& node : step.graph.nodes()) {
    if (node.op_name() != "dropout_train") continue;
    ++dropouts;
    EXPECT_EQ(node.attrs.get_int("rows", 0), 4);
  }
  EXPECT_EQ(dropouts, 2);  // and its gradient
}

}  // namespace
}  // namespace trireme::engine
