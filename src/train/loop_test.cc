// Tests the loop: resumed = uninterrupted, bit for bit; any number of threads and workers; accumulation,
// spikes, failures.
#include "train/loop.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <functional>

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

std::string problem_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const base::Error& e) {
    return e.message();
  }
  return "no error";
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
}

/// The steps in a run's log.
std::vector<StepRecord> steps_of(const TestRun& run) {
  return read_log(run.config.run.directory + "/log.jsonl").steps;
}

TEST(Loop, AnotherBatchKeepsTheEpochsAndTheSchedule) {
  // Batches of 8 and of 24 divide the 120 samples: two epochs are 240 samples with either.
  const auto make = [](int64_t global, bool keep) {
    auto run = std::make_unique<TestRun>("batch", keep);
    run->config.run.steps = 0;
    run->config.run.epochs = 2;
    run->config.batch.global = global;
    run->config.schedule.warmup = 24;
    return run;
  };
  for (const int64_t stop_at : {15, 9}) {
    const auto first = make(8, false);
    const auto before = first->trainer();
    before->run([&] { return before->state().step == stop_at; });
    const auto second = make(24, true);
    const auto after = second->trainer();
    ASSERT_TRUE(after->resume_auto());
    const RunResult result = after->run(never);
    EXPECT_EQ(result.state.step, stop_at + (240 - stop_at * 8) / 24);
    EXPECT_EQ(result.state.epoch, 2);
    EXPECT_EQ(result.state.samples, 240);
    const Schedule schedule(second->config.schedule, {.total = 240, .global_batch = 24});
    EXPECT_NEAR(steps_of(*second)[static_cast<size_t>(stop_at)].lr, schedule.at(stop_at * 8, 24), 1e-12);
  }
  const auto first = make(8, false);
  const auto before = first->trainer();
  before->run([&] { return before->state().step == 8; });  // 64 samples, no multiple of 24
  EXPECT_NE(problem_of([&] { make(24, true)->trainer()->resume_auto(); }).find("no step begins"),
            std::string::npos);
}

TEST(Loop, AnotherBatchOfARunInStepsNeedsTheLengthOfTheSchedule) {
  TestRun run("batch_steps");
  const auto before = run.trainer();
  before->run([&] { return before->state().step == 7; });
  TestRun other("batch_steps", true);
  other.config.batch.global = 8;
  EXPECT_NE(problem_of([&] { other.trainer()->resume_auto(); }).find("state schedule.total: it was 480"),
            std::string::npos);
  other.config.schedule.total = 480;
  const auto after = other.trainer();
  ASSERT_TRUE(after->resume_auto());
  EXPECT_EQ(after->run(never).state.step, 30);
}

/// 60 samples of two numbers, and two targets that follow from them; every third has a note besides.
class Slopes : public data::Dataset {
 public:
  explicit Slopes(tensor::DType targets) : targets_(targets) {
    info_.format = "slopes";
    info_.fields = {{"features", data::FieldKind::tensor, tensor::DType::f32, {2}, false},
                    {"y", data::FieldKind::tensor, targets, {2}, true}};
  }
  int64_t size() const override { return 60; }
  const data::DatasetInfo& info() const override { return info_; }
  data::Sample read(int64_t i) const override {
    base::Rng rng(9, static_cast<uint64_t>(i));
    const auto a = static_cast<float>(rng.normal()), b = static_cast<float>(rng.normal());
    data::Sample sample;
    sample.set("features", tensor::Tensor::from<float>({2}, {a, b}));
    if (targets_ == tensor::DType::f32) {
      sample.set("y", tensor::Tensor::from<float>({2}, {a - b, 2 * b}));
    } else {
      sample.set("y", tensor::Tensor::from<int64_t>({2}, {a > b, i % 7 == 3 ? -100 : 1}));
    }
    if (i % 3 == 0) sample.set("note", tensor::Tensor::zeros(tensor::DType::f32, {i + 1}));
    return sample;
  }

 private:
  tensor::DType targets_;
  data::DatasetInfo info_;
};

TEST(Loop, LearnsSeveralFloatTargetsASample) {
  TestRun run("floats");
  run.dataset = std::make_shared<const Slopes>(tensor::DType::f32);
  run.config.loss.kind = model::LossKind::mse;
  run.config.run.steps = 100;
  const RunResult result = run.trainer()->run(never);
  EXPECT_EQ(result.state.targets, 100 * 16 * 2);
  ASSERT_TRUE(result.last_eval);
  EXPECT_EQ(result.last_eval->targets, 60 * 2);
  EXPECT_LT(result.last_eval->loss, 0.5 * steps_of(run).front().loss);
}

TEST(Loop, AStepOfAnInfiniteLossAndFiniteGradientsIsSkipped) {
  class Huge : public Slopes {
   public:
    Huge() : Slopes(tensor::DType::f32) {}
    data::Sample read(int64_t i) const override {
      data::Sample sample = Slopes::read(i);
      sample.set("y", tensor::Tensor::from<float>({2}, {1e20f, -1e20f}));  // whose squares are infinite
      return sample;
    }
  };
  TestRun run("infinite");
  run.dataset = std::make_shared<const Huge>();
  run.config.loss.kind = model::LossKind::mse;
  run.config.run.steps = 3;
  run.config.schedule.warmup = 0;
  run.config.eval.at_end = false;
  EXPECT_EQ(run.trainer()->run(never).state.executed, 0);
  for (const StepRecord& step : steps_of(run)) {
    EXPECT_TRUE(step.skipped);
    EXPECT_TRUE(std::isfinite(step.grad_norm)) << step.grad_norm;
  }
}

TEST(Loop, ALossOfFloatsCountsEveryIntegerOfItsField) {
  TestRun run("integers");
  run.dataset = std::make_shared<const Slopes>(tensor::DType::i64);
  run.config.loss.kind = model::LossKind::mse;
  run.config.run.steps = 8;  // more than an epoch
  EXPECT_EQ(run.trainer()->run(never).state.targets, 8 * 16 * 2);
  run.config.loader.last = data::LastBatch::pad;  // such a loss would learn from the rows that fill up
  EXPECT_NE(problem_of([&] { run.trainer(); }).find("loader.last: pad"), std::string::npos);
}

TEST(Loop, WhatWasNotSavedIsNotInterruptedAndSaved) {
  TestRun run("unsaved");
  run.config.checkpoint.every = 0;
  run.config.checkpoint.on_error = OnError::go_on;
  const std::string root = run.config.run.directory + "/checkpoints";
  const auto trainer = run.trainer();
  const auto stop = [&] {
    if (trainer->state().step != 10) return false;
    fs::remove_all(root);
    base::write_file_atomic(root, "no directory");  // nothing can be written below it
    return true;
  };
  EXPECT_NE(problem_of([&] { trainer->run(stop); }).find("step 10 is in no checkpoint"), std::string::npos);
  EXPECT_NE(base::read_file(run.config.run.directory + "/log.jsonl").find("interrupted without a checkpoint"),
            std::string::npos);
}

TEST(Loop, GoesOnFromTheNewestThatContinuesTheLatest) {
  const auto make = [](bool keep) {
    auto run = std::make_unique<TestRun>("newest", keep);
    run->config.run.steps = 21;
    run->config.checkpoint.keep = 0;
    return run;
  };
  const auto first = make(false);
  first->trainer()->run(never);
  const std::string root = first->config.run.directory + "/checkpoints";
  base::write_file_atomic(root + "/latest", "step-00000007\n");  // as after a death before the last pointers
  const auto second = make(true);
  const auto at_end = second->trainer();
  ASSERT_TRUE(at_end->resume_auto());
  EXPECT_EQ(at_end->state().step, 21);
  // Another run from step 7 makes steps 14 and 21 an abandoned past.
  const auto third = make(true);
  const auto again = third->trainer();
  again->resume(root + "/step-00000007");
  again->run([&] { return again->state().step == 10; });
  const auto fourth = make(true);
  const auto after = fourth->trainer();
  ASSERT_TRUE(after->resume_auto());
  EXPECT_EQ(after->state().step, 10);
}

TEST(Loop, GoesOnFromItsOwnBranchBehindAReplacedCheckpoint) {
  const auto make = [](bool keep) {
    auto run = std::make_unique<TestRun>("branches", keep);
    run->config.run.steps = 21;
    run->config.checkpoint.keep = 0;
    return run;
  };
  const auto first = make(false);
  first->trainer()->run(never);
  const std::string root = first->config.run.directory + "/checkpoints";
  const auto second = make(true);
  second->config.schedule.lr = 0.01;
  const auto again = second->trainer();
  again->resume(root + "/step-00000007");
  again->run([&] { return again->state().step == 14; });  // dies once it has replaced step 14
  ASSERT_EQ(base::read_file(root + "/latest"), "step-00000014\n");
  const auto third = make(true);
  third->config.schedule.lr = 0.01;
  const auto after = third->trainer();
  ASSERT_TRUE(after->resume_auto());
  EXPECT_EQ(after->state().step, 14);
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
