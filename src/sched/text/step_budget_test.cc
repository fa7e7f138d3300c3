// Prices of steps, and budgets that keep to goals on simulated machines.
#include "sched/text/step_budget.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/clock.h"
#include "engine/decode/decode_rank.h"

namespace trireme::sched {
namespace {

constexpr int64_t kMs = base::kNsPerMs;

TEST(StepPrices, LearnEachSize) {
  StepPrices prices;
  EXPECT_EQ(prices.at_least_ns(5), 0);
  EXPECT_TRUE(std::isinf(prices.expected_ns(5)));
  prices.observe(4, 90 * kMs);  // compiles
  EXPECT_TRUE(std::isinf(prices.expected_ns(4)));
  prices.observe(4, 2 * kMs);
  EXPECT_EQ(prices.expected_ns(4), 2 * kMs);
  EXPECT_EQ(prices.expected_ns(8), 4 * kMs);  // in proportion
  EXPECT_EQ(prices.at_least_ns(8), 2 * kMs);
  EXPECT_EQ(prices.at_least_ns(3), 0);
  for (int i = 0; i < 2; ++i) prices.observe(15, 5 * kMs);  // of 16
  EXPECT_EQ(prices.expected_ns(16), 5 * kMs);
  EXPECT_EQ(prices.expected_ns(12), 4 * kMs);  // between the two
  EXPECT_EQ(prices.expected_ns(32), 9 * kMs);  // along their line
  EXPECT_EQ(prices.at_least_ns(12), 2 * kMs);
}

TEST(StepPrices, FollowAndForget) {
  StepPrices prices;
  for (int i = 0; i < 40; ++i) prices.observe(1, kMs + (i % 2) * kMs / 2);
  EXPECT_NEAR(prices.at_least_ns(1), 1.25 * kMs, 0.2 * kMs);
  EXPECT_GT(prices.expected_ns(1), prices.at_least_ns(1));
  prices.observe(1, 1000 * kMs);  // a stall
  EXPECT_LT(prices.at_least_ns(1), 2 * kMs);
  for (int i = 0; i < 60; ++i) prices.observe(1, 3 * kMs);
  EXPECT_NEAR(prices.at_least_ns(1), 3 * kMs, 0.1 * kMs);
  prices.observe(2, 50 * kMs);
  prices.observe(2, 50 * kMs);
  EXPECT_EQ(prices.expected_ns(2), 50 * kMs);
  for (int i = 0; i < 600; ++i) prices.observe(1, 3 * kMs);
  EXPECT_NEAR(prices.expected_ns(2), 6 * kMs, 0.2 * kMs);  // it was long ago
  EXPECT_NEAR(prices.at_least_ns(2), 3 * kMs, 0.1 * kMs);
  prices.observe(2, 4 * kMs);
  EXPECT_EQ(prices.expected_ns(2), 4 * kMs);
}

/// A machine on which a step takes 2 ms and 0.05 ms a token, filled up to a size.
double step_ms(int64_t tokens) { return 2 + 0.05 * static_cast<double>(engine::rounded_size(tokens)); }

TEST(StepBudget, KeepsStepsWithinTheGoalBetweenTokens) {
  const StepBudget budget({.tpot_goal = {10 * kMs}}, 512);
  StepPrices prices;
  const PromptLeft prompt{.tokens = 100'000, .since_ns = 0};
  const int64_t draws = 4;
  std::vector<int64_t> sizes;
  for (int step = 0; step < 100; ++step) {
    const int64_t tokens = budget.tokens(draws, {&prompt, 1}, 0, prices);
    EXPECT_LE(step_ms(tokens), 10) << "step " << step;
    prices.observe(tokens, static_cast<int64_t>(step_ms(tokens) * kMs));
    sizes.push_back(tokens);
  }
  EXPECT_LE(sizes[0], 16);
  EXPECT_EQ(sizes.back(), 128);                               // 8.4 ms; the next one takes 11.6
  EXPECT_EQ(budget.tokens(0, {&prompt, 1}, 0, prices), 512);  // nobody waits for a next token
  // Where answers alone take too long, prompts go on nevertheless.
  const StepBudget tight({.tpot_goal = {kMs}}, 512);
  EXPECT_EQ(tight.tokens(draws, {&prompt, 1}, 0, prices), 12);
  const StepBudget loose({.tpot_goal = {1000 * kMs}}, 500);
  for (int step = 0; step < 40; ++step) {
    const int64_t tokens = loose.tokens(draws, {&prompt, 1}, 0, prices);
    prices.observe(tokens, static_cast<int64_t>(step_ms(tokens) * kMs));
  }
  EXPECT_EQ(loose.tokens(draws, {&prompt, 1}, 0, prices), 500);
}

TEST(StepBudget, ReadsPromptsAsFastAsTheirFirstTokensNeed) {
  StepPrices prices;
  for (int turn = 0; turn < 2; ++turn) {
    for (int64_t size = 1; size <= 512; size = engine::rounded_size(size + 1))
      prices.observe(size, static_cast<int64_t>(step_ms(size) * kMs));
  }
  const StepBudget budget({.ttft_goal = {200 * kMs}}, 512);
  const auto tokens = [&](std::vector<PromptLeft> prompts, int64_t now_ms) {
    return budget.tokens(4, prompts, now_ms * kMs, prices);
  };
  // 180 ms: 12 tokens a step take 2.6 ms, so 69 steps of 8 read 552.
  EXPECT_EQ(tokens({{.tokens = 550, .since_ns = 0}}, 0), 12);
  EXPECT_EQ(tokens({{.tokens = 560, .since_ns = 0}}, 0), 16);
  // Half of the time is gone; another waits behind it.
  EXPECT_GT(tokens({{.tokens = 550, .since_ns = 0}}, 90), 16);
  EXPECT_GT(tokens({{.tokens = 550, .since_ns = 0}, {.tokens = 550, .since_ns = 0}}, 0), 16);
  EXPECT_EQ(tokens({{.tokens = 550, .since_ns = 0}}, 199), 512);  // late: as fast as can be
  EXPECT_EQ(tokens({}, 0), 512);
  // The goal between tokens comes first.
  const StepBudget both({.ttft_goal = {200 * kMs}, .tpot_goal = {4 * kMs}}, 512);
  const PromptLeft late{.tokens = 5000, .since_ns = 0};
  EXPECT_EQ(both.tokens(4, {&late, 1}, 0, prices), 32);
  const PromptLeft early{.tokens = 100, .since_ns = 0};
  EXPECT_EQ(both.tokens(4, {&early, 1}, 0, prices), 12);
  const StepBudget none({}, 512);
  EXPECT_FALSE(none.has_goals());
  EXPECT_EQ(none.tokens(4, {&late, 1}, 0, prices), 512);
}

}  // namespace
}  // namespace trireme::sched
