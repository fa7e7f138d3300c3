// Tests the loop on ranks: every event of a run happens as on a single rank, bit for bit.
#include <gtest/gtest.h>

#include <functional>

#include "base/files/file.h"
#include "comm/local.h"
#include "train/test_runs.h"

namespace trireme::train {
namespace {

/// The state in which a run ended, for comparison.
struct Ended {
  RunState state;
  std::optional<EvalRecord> eval;
  Checkpoint last;
  std::vector<StepRecord> steps;
};

/// Runs to the end (or to step `stop_at`) on `dp` ranks; `resumes`: from the newest checkpoint.
Ended run_on(TestRun& run, int dp, int zero, bool resumes = false, int64_t stop_at = 0) {
  run.config.batch.micro = 4;
  run.config.parallel.dp = dp;
  run.config.parallel.zero = zero;
  run.config.run.threads = 1;
  Ended ended;
  comm::LocalWorld world(dp);
  world.run([&](comm::Communicator& c) {
    comm::Mesh mesh(c, run.config.parallel.mesh());
    const auto trainer = run.trainer(Ranks(&mesh));
    EXPECT_TRUE(!resumes || trainer->resume_auto());
    // Only the last rank is told to stop, but all ranks do.
    const RunResult result =
        trainer->run([&] { return c.rank() == dp - 1 && trainer->state().step == stop_at; });
    EXPECT_EQ(result.interrupted, stop_at > 0);
    if (c.rank() == 0) ended.state = result.state, ended.eval = result.last_eval;
  });
  ended.last = load_checkpoint(find_checkpoint(run.config.run.directory));
  ended.steps = read_log(run.config.run.directory + "/log.jsonl").steps;
  return ended;
}

void expect_same(const Ended& a, const Ended& b) {
  EXPECT_EQ(a.state, b.state);
  ASSERT_EQ(a.eval.has_value(), b.eval.has_value());
  if (a.eval) {
    EXPECT_EQ(a.eval->loss, b.eval->loss);
    EXPECT_EQ(a.eval->accuracy, b.eval->accuracy);
    EXPECT_EQ(a.eval->targets, b.eval->targets);
  }
  ASSERT_EQ(a.last.tensors.size(), b.last.tensors.size());
  for (size_t i = 0; i < a.last.tensors.size(); ++i) {
    EXPECT_TRUE(a.last.tensors[i].second.same_as(b.last.tensors[i].second)) << a.last.tensors[i].first;
  }
  for (const char* part : {"state", "loss_scaler", "spike_guard"}) {
    EXPECT_EQ(a.last.meta.at(part).dump({.nan_and_infinity = true}),
              b.last.meta.at(part).dump({.nan_and_infinity = true}));
  }
  ASSERT_EQ(a.steps.size(), b.steps.size());
  for (size_t s = 0; s < a.steps.size(); ++s) {
    const auto bits = [](double x) { return std::isnan(x) ? -1.0 : x; };
    EXPECT_EQ(bits(a.steps[s].loss), bits(b.steps[s].loss)) << "step " << s;
    EXPECT_EQ(bits(a.steps[s].grad_norm), bits(b.steps[s].grad_norm)) << "step " << s;
    EXPECT_EQ(a.steps[s].targets, b.steps[s].targets);
  }
}

using Change = std::function<void(TestRun&)>;

/// Compares the run with `change` on one rank with runs on more ranks, at every stage of ZeRO.
void expect_ranks_do_not_matter(const std::string& name, const Change& change) {
  const auto run = [&](int dp, int zero) {
    TestRun one(base::concat(name, dp, zero));
    change(one);
    return run_on(one, dp, zero);
  };
  const Ended alone = run(1, 0);
  expect_same(run(2, 0), alone);
  expect_same(run(2, 3), alone);
  expect_same(run(4, 1), alone);
  expect_same(run(4, 2), alone);
}

TEST(LoopRanks, TrainAndEvaluateAsOne) {
  // 120 samples in batches of 4 make 30 batches, which 4 ranks cannot divide evenly.
  expect_ranks_do_not_matter("ranks_plain", [](TestRun& run) { run.config.eval.every = 9; });
}

TEST(LoopRanks, FindTheSameLossScale) {
  expect_ranks_do_not_matter("ranks_half", [](TestRun& run) {
    run.config.parallel.precision.compute = passes::Precision::f16;
    run.config.loss_scale.initial = 0x1p40;
    run.config.loss_scale.window = 5;
    run.config.run.max_skips = 40;
    run.config.run.steps = 40;
  });
}

TEST(LoopRanks, SkipTheSameSteps) {
  // The bad sample is on one rank, but all ranks skip the step.
  expect_ranks_do_not_matter("ranks_skips", [](TestRun& run) {
    run.dataset = std::make_shared<const Circles>(std::vector<int64_t>{4, 77});
    run.config.run.steps = 21;
    run.config.eval.at_end = false;
  });
}

TEST(LoopRanks, RollBackTogether) {
  expect_ranks_do_not_matter("ranks_rollback", [](TestRun& run) {
    run.config.run.steps = 40;
    run.config.checkpoint.every = 5;
    run.config.spikes.policy = SpikePolicy::rollback;
    run.config.spikes.window = 12;
    run.config.spikes.patience = 1;
    run.config.spikes.z_loss = run.config.spikes.z_norm = 2;
  });
}

TEST(LoopRanks, GoOnUnderAnotherLayout) {
  TestRun whole("ranks_whole");
  const Ended alone = run_on(whole, 1, 0);
  TestRun run("ranks_moved");
  run_on(run, 4, 3, false, 5);
  for (const auto& [dp, zero, stop_at] : std::vector<std::array<int, 3>>{{2, 1, 11}, {1, 0, 18}, {4, 2, 0}}) {
    TestRun next("ranks_moved", true);
    const Ended ended = run_on(next, dp, zero, true, stop_at);
    if (stop_at == 0) expect_same(ended, alone);
  }
}

class Broken : public Circles {
 public:
  data::Sample read(int64_t i) const override {
    base::require(i != 33, "this sample is broken");
    return Circles::read(i);
  }
};

TEST(LoopRanks, AFailedLastEvaluationLeavesACheckpoint) {
  // The broken sample is in batch 8 of 4 samples, which rank 0 of 2 evaluates.
  for (const int dp : {1, 2}) {
    TestRun run(base::concat("ranks_evaluation", dp));
    run.validation = std::make_shared<const Broken>();
    run.config.checkpoint.every = 0;
    try {
      run_on(run, dp, 0);
      FAIL() << "no error";
    } catch (const base::Error& e) {
      EXPECT_NE(e.message().find("sample 33"), std::string::npos) << e.message();
    }
    EXPECT_EQ(load_checkpoint(find_checkpoint(run.config.run.directory)).step, 30);
  }
}

TEST(LoopRanks, ABrokenSampleEndsTheRunWithItsName) {
  TestRun run("ranks_broken");
  run.dataset = std::make_shared<const Broken>();
  try {
    run_on(run, 4, 1);
    FAIL() << "no error";
  } catch (const base::Error& e) {
    EXPECT_NE(e.message().find("rank "), std::string::npos) << e.message();
    EXPECT_NE(e.message().find("sample 33"), std::string::npos) << e.message();
  }
}

TEST(LoopRanks, TheLayoutMustBeThatOfTheRanks) {
  TestRun run("ranks_wrong");
  run.config.parallel.dp = 2;
  EXPECT_THROW(run.trainer(), base::Error);
}

}  // namespace
}  // namespace trireme::train
