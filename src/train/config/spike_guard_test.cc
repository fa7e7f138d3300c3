// Tests the spike guard: limits, verdicts for each policy, history, saving and restoring.
#include "train/config/spike_guard.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace trireme::train {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

/// A guard with a full history of losses 2 +- 0.1 and norms 1 +- 0.1.
SpikeGuard warm(SpikePolicy policy, int64_t patience = 2) {
  SpikeGuard guard({.policy = policy, .window = 8, .z_loss = 5, .z_norm = 4, .patience = patience});
  for (int i = 0; i < 8; ++i) guard.observe(2 + (i % 2 ? 0.1 : -0.1), 1 + (i % 2 ? 0.1 : -0.1));
  return guard;
}

TEST(SpikeGuard, LimitsAreMeanAndDeviations) {
  SpikeGuard guard({.policy = SpikePolicy::skip, .window = 8, .z_loss = 5, .z_norm = 4});
  EXPECT_EQ(guard.loss_limit(), kInf);
  guard = warm(SpikePolicy::skip);
  EXPECT_NEAR(guard.loss_limit(), 2.5, 1e-12);
  EXPECT_NEAR(guard.norm_limit(), 1.4, 1e-12);
  EXPECT_EQ(warm(SpikePolicy::off).loss_limit(), kInf);
}

TEST(SpikeGuard, SkipOnlySkips) {
  SpikeGuard guard = warm(SpikePolicy::skip, 1);
  const SpikeVerdict v = guard.observe(2.6, 1);
  EXPECT_EQ(v.action, SpikeAction::skipped);
  EXPECT_NEAR(v.z_loss, 6, 1e-9);
  EXPECT_EQ(v.reason.substr(0, 9), "loss 2.6 ");
}

TEST(SpikeGuard, RollbackAndStopNeedPatience) {
  for (const auto& [policy, last] :
       {std::pair{SpikePolicy::rollback, SpikeAction::rollback}, {SpikePolicy::stop, SpikeAction::stop}}) {
    SpikeGuard guard = warm(policy);
    EXPECT_EQ(guard.observe(2, 9).action, SpikeAction::skipped);
    EXPECT_EQ(guard.observe(2, 99).action, last);
    guard = warm(policy);
    EXPECT_EQ(guard.observe(2, 9).action, SpikeAction::skipped);
    EXPECT_EQ(guard.observe(2, 1).action, SpikeAction::go_on);
    EXPECT_EQ(guard.observe(2, 999).action, SpikeAction::skipped);  // not in a row
  }
}

TEST(SpikeGuard, NotFiniteIsNoSpikeAndNoHistory) {
  SpikeGuard guard = warm(SpikePolicy::stop, 1);
  const double before = guard.loss_limit();
  EXPECT_EQ(guard.observe(kNan, 1).action, SpikeAction::go_on);
  EXPECT_EQ(guard.observe(2, kInf).action, SpikeAction::go_on);
  EXPECT_EQ(guard.loss_limit(), before);
}

TEST(SpikeGuard, ALastingChangeIsAccepted) {
  SpikeGuard guard = warm(SpikePolicy::skip);
  int skipped = 0;
  for (int i = 0; i < 20; ++i)
    skipped += guard.observe(3 + (i % 2 ? 0.1 : -0.1), 1).action != SpikeAction::go_on;
  EXPECT_GE(skipped, 1);
  EXPECT_LE(skipped, 3);
}

TEST(SpikeGuard, AConstantHistoryHasNoDeviation) {
  SpikeGuard guard({.policy = SpikePolicy::skip, .window = 4});
  for (int i = 0; i < 4; ++i) guard.observe(1, 1);
  EXPECT_EQ(guard.observe(1, 1).action, SpikeAction::go_on);
}

TEST(SpikeGuard, AverageLossIsCorrectedForItsStart) {
  SpikeGuard guard({.loss_keep = 0.5});
  guard.observe(4, 1);
  EXPECT_EQ(guard.average_loss(), 4);
  guard.observe(1, 1);
  EXPECT_EQ(guard.average_loss(), (0.5 * 4 + 1) / 1.5);
}

TEST(SpikeGuard, RestoredGoesOnAsIfItHadNotStopped) {
  for (int cut = 0; cut < 30; ++cut) {
    const SpikeOptions options{.policy = SpikePolicy::rollback, .window = 8, .z_loss = 2, .z_norm = 2};
    SpikeGuard whole(options), second(options);
    for (int i = 0; i < 40; ++i) {
      const double loss = 2 + std::sin(i * i), norm = 1 + std::cos(3 * i * i);
      const SpikeVerdict a = whole.observe(loss, norm);
      if (i == cut) second.restore(base::parse_json(whole.state().dump()));
      if (i <= cut) continue;
      const SpikeVerdict b = second.observe(loss, norm);
      EXPECT_EQ(a.action, b.action);
      EXPECT_EQ(a.z_loss, b.z_loss);
      EXPECT_EQ(whole.norm_limit(), second.norm_limit());
    }
  }
}

}  // namespace
}  // namespace trireme::train
