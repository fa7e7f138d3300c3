// Tests the loop: resumed = uninterrupted, bit for bit; any number of threads and workers; accumulation,
// spikes, failures.
#include "train/loop.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "base/error.h"
#include "base/files/file.h"
#include "train/test_runs.h"

namespace trireme::train {
namespace {

namespace fs = std::filesystem;

model::NamedTensors states_of(Trainer& trainer) {
  model::NamedTensors all;
  for (const std::string& name : trainer.session().states().names()) {
    if (!name.ends_with(".grad")) all.emplace_back(name, trainer.session().states().at(name).clone());
  }
  return all;
}

void expect_equal(const model::NamedTensors& a, const model::NamedTensors& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].first, b[i].first);
    EXPECT_TRUE(a[i].second.same_as(b[i].second)) << a[i].first;
  }
}

/// The run without interruption, which all other runs must equal.
model::NamedTensors uninterrupted() {
  TestRun run("whole");
  const auto trainer = run.trainer();
  trainer->run(never);
  return states_of(*trainer);
}

TEST(Loop, LearnsAndReports) {
  TestRun run("learns");
  run.config.run.steps = 150;
  run.config.eval.every = 50;
  const auto trainer = run.trainer();
  const RunResult result = trainer->run(never);
  ASSERT_TRUE(result.last_eval);
  EXPECT_GT(result.last_eval->accuracy, 0.95);
  EXPECT_EQ(result.last_eval->targets, 120 - 17);  // every seventh label is ignored
  EXPECT_EQ(result.state.step, 150);
  EXPECT_EQ(result.state.samples, 150 * 16);
  const LoggedRun logged = read_log(run.config.run.directory + "/log.jsonl");
  EXPECT_EQ(logged.steps.size(), 150u);
  EXPECT_EQ(logged.evals.size(), 3u);
  EXPECT_LT(logged.steps.back().loss, logged.steps.front().loss);
  EXPECT_GT(logged.steps[100].data_wait_ms + logged.steps[100].forward_ms, 0);
  EXPECT_NE(base::read_file(run.config.run.directory + "/report.md").find("best validation"),
            std::string::npos);
  EXPECT_TRUE(base::file_exists(run.config.run.directory + "/checkpoints/step-00000150/index.json"));
}

TEST(Loop, ResumedEqualsUninterruptedAtEveryStep) {
  const model::NamedTensors whole = uninterrupted();
  for (int64_t stop_at = 1; stop_at < 30; stop_at += 4) {
    TestRun first("resumed");
    const auto before = first.trainer();
    const RunResult broken = before->run([&] { return before->state().step == stop_at; });
    EXPECT_TRUE(broken.interrupted);
    TestRun second("resumed", true);
    const auto after = second.trainer();
    ASSERT_TRUE(after->resume_auto());
    EXPECT_EQ(after->state(), before->state());
    EXPECT_FALSE(after->run(never).interrupted);
    expect_equal(states_of(*after), whole);
    const LoggedRun logged = read_log(second.config.run.directory + "/log.jsonl");
    EXPECT_EQ(logged.steps.size(), 30u) << "stopped at " << stop_at;
  }
}

TEST(Loop, ThreadsAndWorkersDoNotChangeABit) {
  const model::NamedTensors whole = uninterrupted();
  for (const int threads : {1, 3, 4}) {
    TestRun run("threads");
    run.config.run.threads = threads;
    run.config.loader.workers = threads - 1;
    run.config.loader.prefetch = threads;
    const auto trainer = run.trainer();
    trainer->run(never);
    expect_equal(states_of(*trainer), whole);
  }
}

TEST(Loop, AccumulationSumsWhatOneBatchSums) {
  std::vector<std::vector<double>> losses;
  for (const int64_t micro : {16, 8, 4}) {
    TestRun run("accumulate");
    run.config.batch.micro = micro;
    run.config.run.steps = 8;
    const auto trainer = run.trainer();
    trainer->run(never);
    losses.emplace_back();
    for (const StepRecord& r : read_log(run.config.run.directory + "/log.jsonl").steps) {
      losses.back().push_back(r.loss);
    }
  }
  // Samples, masks and the divisor (valid targets of the whole step) are equal; only sums differ in order.
  for (size_t s = 0; s < 8; ++s) {
    EXPECT_NEAR(losses[1][s], losses[0][s], 2e-6 * losses[0][s]) << "step " << s;
    EXPECT_NEAR(losses[2][s], losses[0][s], 2e-6 * losses[0][s]) << "step " << s;
  }
}

TEST(Loop, SkippedStepsMoveTheDataOnly) {
  TestRun run("skips");
  run.dataset = std::make_shared<const Circles>(std::vector<int64_t>{4});
  run.config.run.steps = 14;  // two epochs of seven steps: the bad sample occurs at most twice
  const auto trainer = run.trainer();
  const RunResult result = trainer->run(never);
  EXPECT_EQ(result.state.step, 14);
  EXPECT_LT(result.state.executed, 14);
  EXPECT_EQ(result.state.scheduled, result.state.executed * 16);
  EXPECT_EQ(result.state.samples, 14 * 16);
  for (const auto& [name, t] : states_of(*trainer)) {
    if (t.dtype() != tensor::DType::f32) continue;
    for (const float v : t.data<float>()) ASSERT_TRUE(std::isfinite(v)) << name;
  }
  TestRun strict("strict");
  strict.dataset = run.dataset;
  strict.config.run.non_finite = NonFinite::stop;
  strict.config.run.steps = 14;
  const auto stopped = strict.trainer();
  EXPECT_THROW(stopped->run(never), base::Error);
}

TEST(Loop, HalfPrecisionFindsItsScaleAndResumes) {
  const auto make = [](bool keep) {
    auto run = std::make_unique<TestRun>("half", keep);
    run->config.parallel.precision.compute = passes::Precision::f16;
    run->config.loss_scale.initial = 0x1p40;  // overflows until it has fallen a lot
    run->config.loss_scale.window = 5;
    run->config.run.max_skips = 40;
    run->config.run.steps = 60;
    return run;
  };
  const auto first = make(false);
  const auto whole = first->trainer();
  const RunResult result = whole->run(never);
  EXPECT_GT(result.state.executed, 20);
  EXPECT_LT(result.state.executed, 50);
  const LoggedRun logged = read_log(first->config.run.directory + "/log.jsonl");
  EXPECT_EQ(logged.steps.front().loss_scale, 0x1p40);
  EXPECT_LT(logged.steps.back().loss_scale, 0x1p30);
  EXPECT_LT(logged.steps.back().loss, logged.steps.front().loss);
  const auto second = make(false);
  const auto before = second->trainer();
  before->run([&] { return before->state().step == 23; });
  const auto third = make(true);
  const auto after = third->trainer();
  ASSERT_TRUE(after->resume_auto());
  after->run(never);
  expect_equal(states_of(*after), states_of(*whole));
}

TEST(Loop, RefusesACheckpointOfAnotherRun) {
  TestRun run("other");
  run.config.run.steps = 7;
  run.trainer()->run(never);
  const std::string path = run.config.run.directory;
  TestRun seed("other_seed");
  seed.config.run.seed = 2;
  EXPECT_THROW(seed.trainer()->resume(path), base::Error);
  TestRun optimizer("other_optimizer");
  optimizer.config.optimizer.kind = passes::OptimizerKind::sgd;
  EXPECT_THROW(optimizer.trainer()->resume(path), base::Error);
  TestRun batch("other_batch");  // the batch may differ if it divides the position
  batch.config.batch.global = 8;
  EXPECT_NO_THROW(batch.trainer()->resume(path));
}

TEST(Loop, ACorruptNewestCheckpointFallsBack) {
  const model::NamedTensors whole = uninterrupted();
  TestRun first("corrupt");
  const auto before = first.trainer();
  before->run([&] { return before->state().step == 20; });
  const std::string newest =
      first.config.run.directory + "/checkpoints/step-00000020/tensors-00000.safetensors";
  fs::resize_file(newest, fs::file_size(newest) - 5);
  TestRun second("corrupt", true);
  const auto after = second.trainer();
  ASSERT_TRUE(after->resume_auto());
  EXPECT_EQ(after->state().step, 14);
  after->run(never);
  expect_equal(states_of(*after), whole);
}

std::unique_ptr<TestRun> spiky(bool keep) {
  auto run = std::make_unique<TestRun>("rollback", keep);
  run->config.run.steps = 60;
  run->config.checkpoint.every = 5;
  run->config.checkpoint.keep = 3;
  run->config.spikes.policy = SpikePolicy::rollback;
  run->config.spikes.window = 16;
  run->config.spikes.patience = 1;
  run->config.spikes.z_loss = run->config.spikes.z_norm = 2;  // ordinary noise now counts as a spike
  return run;
}

TEST(Loop, RollsBackBehindASpikeAndResumesTheSame) {
  const auto run = spiky(false);
  const auto whole = run->trainer();
  const RunResult result = whole->run(never);
  EXPECT_EQ(result.state.step, 60);
  EXPECT_LT(result.state.executed, 60);
  const std::string lines = base::read_file(run->config.run.directory + "/log.jsonl");
  EXPECT_NE(lines.find("\"event\":\"rollback\""), std::string::npos);
  for (const int64_t stop_at : {17, 23, 34, 41, 52}) {
    const auto first = spiky(false);
    const auto before = first->trainer();
    before->run([&] { return before->state().step == stop_at; });
    const auto second = spiky(true);
    const auto after = second->trainer();
    ASSERT_TRUE(after->resume_auto());
    EXPECT_EQ(after->run(never).state, result.state) << "stopped at " << stop_at;
    expect_equal(states_of(*after), states_of(*whole));
  }
}

}  // namespace
}  // namespace trireme::train
