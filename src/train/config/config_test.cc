// Tests values derived from a configuration: whole numbers of batches, and the length of a run.
#include "train/config/config.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace trireme::train {
namespace {

BatchPlan plan(int64_t global, int64_t micro, int64_t accumulate) {
  return plan_batch({.global = global, .micro = micro, .accumulate = accumulate});
}

TEST(Config, BatchesAreDerivedInWholeNumbers) {
  EXPECT_EQ(plan(64, 0, 0).micro, 64);
  EXPECT_EQ(plan(64, 0, 0).accumulate, 1);
  EXPECT_EQ(plan(64, 16, 0).accumulate, 4);
  EXPECT_EQ(plan(64, 0, 8).micro, 8);
  EXPECT_EQ(plan(64, 16, 4).micro, 16);
  EXPECT_THROW(plan(64, 24, 0), base::Error);
  EXPECT_THROW(plan(64, 0, 5), base::Error);
  EXPECT_THROW(plan(64, 16, 2), base::Error);
  EXPECT_THROW(plan(0, 0, 0), base::Error);
  try {
    plan(64, 24, 0);
  } catch (const base::Error& e) {
    EXPECT_NE(e.message().find("micro 24"), std::string::npos) << e.message();
  }
}

TEST(Config, BatchesAreSharedByDataParallelRanks) {
  const BatchPlan four = plan_batch({.global = 64, .micro = 8}, 4);
  EXPECT_EQ(four.accumulate, 2);
  EXPECT_EQ(four.text(), "64 = 8 micro x 2 accumulate x 4 dp");
  EXPECT_EQ(plan_batch({.global = 64}, 4).micro, 16);
  EXPECT_EQ(plan_batch({.global = 64, .accumulate = 2}, 4).micro, 8);
  EXPECT_THROW(plan_batch({.global = 64, .micro = 8}, 3), base::Error);
  EXPECT_THROW(plan_batch({.global = 64, .micro = 32}, 4), base::Error);
  EXPECT_THROW(plan_batch({.global = 64, .micro = 8, .accumulate = 4}, 4), base::Error);
}

TEST(Config, LengthComesFromStepsOrEpochs) {
  RunOptions run;
  EXPECT_THROW(plan_steps(run, 10), base::Error);
  run.steps = 7;
  EXPECT_EQ(plan_steps(run, 10), 7);
  run.epochs = 2;
  EXPECT_THROW(plan_steps(run, 10), base::Error);
  run.steps = 0;
  run.epochs = 2.5;
  EXPECT_EQ(plan_steps(run, 10), 25);
  run.epochs = 0.001;
  EXPECT_EQ(plan_steps(run, 10), 1);
  EXPECT_EQ(run.path(), "runs/run");
}

}  // namespace
}  // namespace trireme::train
