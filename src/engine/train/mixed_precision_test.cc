// Sessions in 16 bits and with every optimizer: they learn as in f32, with the same bits for every number of
// threads, and a step with too large a loss scale changes nothing.
#include <gtest/gtest.h>

#include <cmath>

#include "base/rng.h"
#include "engine/train/train_session.h"
#include "tests/test_device.h"
#include "tests/train_steps.h"

namespace trireme::engine {
namespace {

using passes::OptimizerKind;
using passes::Precision;
using tensor::DType;
using tensor::Tensor;

/// Tokens that follow a rule (next = 3 token + 1 mod 17), 4 rows of 8.
Feeds rule_rows(uint64_t stream) {
  Tensor ids = Tensor::empty(DType::i64, {4, 8}), labels = Tensor::empty(DType::i64, {4, 8});
  base::Rng rng(3, stream);
  for (size_t i = 0; i < 32; ++i) {
    auto& id = ids.mutable_data<int64_t>()[i];
    id = i % 8 == 0 ? static_cast<int64_t>(rng.uniform() * 17) : (3 * ids.data<int64_t>()[i - 1] + 1) % 17;
    labels.mutable_data<int64_t>()[i] = (3 * id + 1) % 17;
  }
  return {ids, labels};
}

/// Images with one bright row, whose position is the class.
Feeds bright_rows(uint64_t stream) {
  Tensor x = Tensor::empty(DType::f32, {8, 1, 28, 28}), labels = Tensor::empty(DType::i64, {8});
  base::Rng rng(5, stream);
  for (float& v : x.mutable_data<float>()) v = static_cast<float>(0.1 * rng.normal());
  for (int64_t n = 0; n < 8; ++n) {
    const int64_t label = static_cast<int64_t>(rng.uniform() * 10);
    labels.mutable_data<int64_t>()[static_cast<size_t>(n)] = label;
    for (int64_t c = 0; c < 28; ++c)
      x.mutable_data<float>()[static_cast<size_t>((n * 28 + 2 * label + 4) * 28 + c)] += 1;
  }
  return {x, labels};
}

const std::vector<std::string> kSmallGpt{"vocabulary=17", "positions=8", "width=32", "layers=2", "heads=2"};

struct PrecisionRun {
  std::vector<double> loss;
  std::unique_ptr<TrainSession> session;
};

PrecisionRun train_mixed(const ir::Graph& graph, const TrainOptions& options, Feeds (*feed)(uint64_t),
                         int steps, float lr) {
  PrecisionRun t{{}, std::make_unique<TrainSession>(graph, options)};
  const float scale = options.scaled_loss ? 1024.0f : 1.0f;
  for (int s = 0; s < steps; ++s) {
    const Feeds feeds = feed(static_cast<uint64_t>(s));
    StepInputs inputs;
    inputs.lr = lr;
    inputs.step = s + 1;
    inputs.loss_weight = scale / static_cast<float>(feeds[1].elements());
    inputs.grad_scale = 1 / scale;
    const StepResult r = t.session->step(feeds, inputs);
    EXPECT_FALSE(r.skipped);
    t.loss.push_back(r.loss_sum / static_cast<double>(feeds[1].elements()));
  }
  return t;
}

TrainOptions mixed_options(Precision precision, int threads = 2) {
  TrainOptions o;
  o.strategy.precision.compute = precision;
  o.scaled_loss = precision == Precision::f16;
  o.device = tests::device_under_test();
  o.threads = threads;
  return o;
}

TEST(MixedPrecision, GptLearnsAsInF32) {
  const ir::Graph gpt = tests::loss_network("gpt2", kSmallGpt);
  const std::vector<double> want = train_mixed(gpt, mixed_options(Precision::f32), rule_rows, 60, 0.01f).loss;
  EXPECT_LT(want.back(), 0.3 * want.front());
  for (Precision p : {Precision::bf16, Precision::f16}) {
    const PrecisionRun got = train_mixed(gpt, mixed_options(p), rule_rows, 60, 0.01f);
    EXPECT_NEAR(got.loss[0], want[0], 0.01);
    EXPECT_NE(got.loss[0], want[0]);
    EXPECT_LT(got.loss.back(), 0.3 * want.front());
    for (const std::string& name : got.session->states().names())
      EXPECT_EQ(got.session->states().at(name).dtype(), DType::f32)
          << name << ": masters and moments are f32";
    EXPECT_NE(got.session->precision_text().find("layer_norm x 5: f32: statistics"), std::string::npos)
        << got.session->precision_text();
    EXPECT_NE(got.session->precision_text().find("attention"), std::string::npos);
  }
}

/// The mean distance between two loss curves.
double mean_distance(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += std::abs(a[i] - b[i]);
  return sum / static_cast<double>(a.size());
}

TEST(MixedPrecision, EightBitProductsLearnNearly) {
  const ir::Graph gpt = tests::loss_network("gpt2", kSmallGpt);
  const int steps = tests::device_under_test() == "cpu" ? 50 : 8;
  const std::vector<double> exact =
      train_mixed(gpt, mixed_options(Precision::f32), rule_rows, steps, 0.01f).loss;
  const std::vector<double> bf16 =
      train_mixed(gpt, mixed_options(Precision::bf16), rule_rows, steps, 0.01f).loss;
  const PrecisionRun got = train_mixed(gpt, mixed_options(Precision::fp8), rule_rows, steps, 0.01f);
  EXPECT_NE(got.loss[1], bf16[1]);
  EXPECT_LT(mean_distance(exact, got.loss), 0.04);  // of losses that fall from 2.9 to 0.05
  if (steps == 50) {
    EXPECT_LT(got.loss.back(), 0.1);
  }
  const std::string& text = got.session->precision_text();
  EXPECT_NE(text.find("linear x 8: 16-bit: product of 8-bit floats"), std::string::npos) << text;
  EXPECT_NE(text.find("linear x 1: 16-bit: product, sums in f32; no product follows"), std::string::npos);
}

TEST(MixedPrecision, EightBitStepsDoNotDependOnThreads) {
  const ir::Graph gpt = tests::loss_network("gpt2", kSmallGpt);
  const PrecisionRun a = train_mixed(gpt, mixed_options(Precision::fp8, 1), rule_rows, 3, 0.01f);
  const PrecisionRun b = train_mixed(gpt, mixed_options(Precision::fp8, 3), rule_rows, 3, 0.01f);
  EXPECT_EQ(a.loss, b.loss);
}

TEST(MixedPrecision, ConvolutionsLearnAsInF32) {
  const ir::Graph cnn = tests::loss_network("cnn", {});
  const std::vector<double> want =
      train_mixed(cnn, mixed_options(Precision::f32), bright_rows, 12, 0.002f).loss;
  const PrecisionRun got = train_mixed(cnn, mixed_options(Precision::bf16), bright_rows, 12, 0.002f);
  EXPECT_NEAR(got.loss[0], want[0], 0.02);
  EXPECT_LT(got.loss.back(), 0.7 * want.front());
  EXPECT_NE(got.session->precision_text().find("conv_nhwc"), std::string::npos)
      << got.session->precision_text();
}

TEST(MixedPrecision, ThreadsDoNotMatter) {
  const ir::Graph gpt = tests::loss_network("gpt2", kSmallGpt);
  const PrecisionRun a = train_mixed(gpt, mixed_options(Precision::bf16, 1), rule_rows, 4, 0.01f);
  const PrecisionRun b = train_mixed(gpt, mixed_options(Precision::bf16, 3), rule_rows, 4, 0.01f);
  EXPECT_EQ(a.loss, b.loss);
  for (const std::string& name : a.session->states().names())
    EXPECT_TRUE(a.session->states().at(name).same_as(b.session->states().at(name))) << name;
}

TEST(MixedPrecision, AnOverflowChangesNothing) {
  TrainSession session(tests::loss_network("gpt2", kSmallGpt), mixed_options(Precision::f16));
  session.prepare({{4, 8}, {4, 8}}, 1);
  std::map<std::string, Tensor> before;
  for (const std::string& name : session.states().names()) before[name] = session.states().at(name).clone();
  StepInputs inputs;
  inputs.lr = 0.01f;
  inputs.loss_weight = 1e9f;
  inputs.grad_scale = 1e-9f;
  const StepResult r = session.step(rule_rows(0), inputs);
  EXPECT_TRUE(r.skipped);
  EXPECT_FALSE(std::isfinite(r.grad_norm));
  EXPECT_TRUE(std::isfinite(r.loss_sum));
  for (const auto& [name, content] : before) EXPECT_TRUE(session.states().at(name).same_as(content)) << name;
}

TEST(Optimizers, EveryKindLearns) {
  const ir::Graph gpt = tests::loss_network("gpt2", kSmallGpt);
  const std::pair<OptimizerKind, float> kinds[] = {
      {OptimizerKind::sgd, 0.2f},   {OptimizerKind::adam, 0.01f}, {OptimizerKind::adamw, 0.01f},
      {OptimizerKind::lamb, 0.02f}, {OptimizerKind::lars, 0.5f},  {OptimizerKind::adafactor, 0.05f},
      {OptimizerKind::muon, 0.01f}};
  for (const auto& [kind, lr] : kinds) {
    TrainOptions options = mixed_options(Precision::f32);
    options.optimizer.kind = kind;
    options.optimizer.clip_norm = 1;
    options.optimizer.eta = 0.05;  // lars applies the full rate to vectors, so it must be small
    const PrecisionRun t = train_mixed(gpt, options, rule_rows, 80, lr);
    EXPECT_LT(t.loss.back(), 0.5 * t.loss.front()) << t.session->optimizer_text();
  }
}

TEST(Optimizers, MicroBatchesMakeTheSameGroups) {
  TrainOptions options = mixed_options(Precision::f32);
  options.optimizer.kind = OptimizerKind::muon;
  options.optimizer.muon_exclude = {};  // the embedding is recognized by its readers
  TrainSession whole(tests::loss_network("gpt2", kSmallGpt), options),
      parts(tests::loss_network("gpt2", kSmallGpt), options);
  whole.prepare({{4, 8}, {4, 8}}, 1);
  parts.prepare({{4, 8}, {4, 8}}, 2);
  EXPECT_EQ(whole.optimizer_text(), parts.optimizer_text());
}

}  // namespace
}  // namespace trireme::engine
