// Tests learning rates: the vector of the training contracts, every form at its ends, batch independence.
#include "train/config/schedule.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"

namespace trireme::train {
namespace {

TEST(Schedule, ContractVector) {
  const Schedule s({.kind = ScheduleKind::cosine, .lr = 6e-4, .min_lr = 6e-5, .warmup = 10}, {.total = 100});
  const std::pair<int64_t, double> want[] = {{0, 6e-5}, {9, 6e-4}, {10, 6e-4}, {55, 3.3e-4}, {100, 6e-5}};
  for (const auto& [i, lr] : want) EXPECT_NEAR(s.at(i, 1), lr, 1e-18) << i;
  EXPECT_EQ(s.at(1000, 1), s.at(100, 1));
}

TEST(Schedule, CountsSamplesSoThatTheBatchDoesNotMatter) {
  const ScheduleOptions options{.lr = 6e-4, .min_lr = 6e-5, .warmup = 1000};
  const Schedule s(options, {.total = 10000});
  // The same samples in steps of 10 and of 100: in the decay, rates are equal where both begin a step.
  for (int64_t seen = 1000; seen < 10000; seen += 100) EXPECT_EQ(s.at(seen, 10), s.at(seen, 100));
  // Both reach the peak at the last step of the warm-up.
  EXPECT_NEAR(s.at(990, 10), 6e-4, 1e-18);
  EXPECT_NEAR(s.at(900, 100), 6e-4, 1e-18);
  EXPECT_NEAR(s.at(0, 100), 6e-5, 1e-18);
}

TEST(Schedule, SaysWhetherItsLengthIsTheRuns) {
  const auto follows = [](ScheduleOptions options) {
    options.lr = 1;
    return Schedule(options, {.total = 1000}).is_as_long_as_the_run();
  };
  EXPECT_TRUE(follows({.kind = ScheduleKind::cosine}));
  EXPECT_TRUE(follows({.kind = ScheduleKind::wsd}));
  EXPECT_TRUE(follows({.kind = ScheduleKind::constant, .warmup_fraction = 0.1}));
  EXPECT_FALSE(follows({.kind = ScheduleKind::cosine, .total = 500}));
  EXPECT_FALSE(follows({.kind = ScheduleKind::constant, .warmup = 10, .warmup_fraction = 0.1}));
  EXPECT_FALSE(follows({.kind = ScheduleKind::inverse_root, .warmup = 10}));
}

TEST(Schedule, WarmupFromARate) {
  const Schedule s({.kind = ScheduleKind::constant, .lr = 1, .warmup = 10, .warmup_from = 0.5},
                   {.total = 100});
  EXPECT_EQ(s.at(0, 1), 0.5);
  EXPECT_EQ(s.at(5, 1), 0.75);
  EXPECT_EQ(s.at(10, 1), 1);
}

TEST(Schedule, WarmupAsAShare) {
  const Schedule s({.kind = ScheduleKind::constant, .lr = 1, .warmup_fraction = 0.1}, {.total = 1000});
  EXPECT_NEAR(s.at(49, 1), 0.5, 1e-12);
  EXPECT_EQ(s.at(100, 1), 1);
}

TEST(Schedule, LinearAndStep) {
  const Schedule linear({.kind = ScheduleKind::linear, .lr = 1, .min_lr = 0.2}, {.total = 100});
  EXPECT_EQ(linear.at(0, 1), 1);
  EXPECT_NEAR(linear.at(50, 1), 0.6, 1e-12);
  EXPECT_NEAR(linear.at(100, 1), 0.2, 1e-12);
  const Schedule step({.kind = ScheduleKind::step, .lr = 1, .drop_at = {60, 30}, .drop_factor = 0.1},
                      {.total = 100});
  EXPECT_EQ(step.at(29, 1), 1);
  EXPECT_NEAR(step.at(30, 1), 0.1, 1e-12);
  EXPECT_NEAR(step.at(60, 1), 0.01, 1e-12);
}

TEST(Schedule, InverseRootIsContinuousAtTheWarmup) {
  const Schedule s({.kind = ScheduleKind::inverse_root, .lr = 2, .warmup = 100}, {.total = 1 << 20});
  EXPECT_EQ(s.at(99, 1), 2);
  EXPECT_EQ(s.at(100, 1), 2);
  EXPECT_NEAR(s.at(400, 1), 1, 1e-12);
  EXPECT_NEAR(s.at(10000, 1), 0.2, 1e-12);
}

TEST(Schedule, WarmupStableDecay) {
  const struct {
    DecayForm form;
    double quarter;  // at x = 1/4
  } forms[] = {{DecayForm::linear, 0.75},
               {DecayForm::cosine, (1 + std::sqrt(0.5)) / 2},
               {DecayForm::exponential, 2 * std::pow(0.5, 0.25) - 1},
               {DecayForm::one_minus_sqrt, 0.5}};
  for (const auto& f : forms) {
    const Schedule s({.kind = ScheduleKind::wsd, .lr = 1, .warmup = 10, .decay = 20, .decay_form = f.form},
                     {.total = 100});
    EXPECT_EQ(s.at(10, 1), 1);
    EXPECT_EQ(s.at(79, 1), 1);
    EXPECT_NEAR(s.at(85, 1), f.quarter, 1e-12);
    EXPECT_NEAR(s.at(100, 1), 0, 1e-12);
  }
}

TEST(Schedule, ScalesWithTheBatch) {
  ScheduleOptions o{
      .kind = ScheduleKind::constant, .lr = 0.1, .batch_scaling = BatchScaling::linear, .base_batch = 256};
  EXPECT_NEAR(Schedule(o, {.total = 1, .global_batch = 1024}).at(0, 1), 0.4, 1e-12);
  o.batch_scaling = BatchScaling::sqrt;
  EXPECT_NEAR(Schedule(o, {.total = 1, .global_batch = 1024}).at(0, 1), 0.2, 1e-12);
}

TEST(Schedule, RefusesWhatDoesNotFit) {
  EXPECT_THROW(Schedule({.warmup = 200}, {.total = 100}), base::Error);
  EXPECT_THROW(Schedule({.lr = 1, .min_lr = 2}, {.total = 100}), base::Error);
  EXPECT_THROW(Schedule({.kind = ScheduleKind::wsd, .warmup = 60, .decay = 50}, {.total = 100}), base::Error);
}

TEST(Schedule, Describes) {
  const Schedule s({.lr = 6e-4, .min_lr = 6e-5, .unit = ScheduleUnit::tokens, .warmup = 10}, {.total = 100});
  EXPECT_EQ(s.describe(), "cosine schedule: peak 0.0006, floor 6e-05, warm-up 10 of 100 tokens");
}

}  // namespace
}  // namespace trireme::train
