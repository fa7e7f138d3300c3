// How many tokens a step runs.
#include "sched/text/step_budget.h"

#include <algorithm>

#include "engine/decode/decode_rank.h"

namespace trireme::sched {
namespace {

/// Of prompts, in every step.
constexpr int64_t kLeastOfPrompts = 8;
/// The first token also waits for its way to the client, and prices vary.
constexpr double kShareOfGoal = 0.9;

}  // namespace

/// The largest size that fits: a step is filled up to one in any case.
int64_t StepBudget::for_next_token(int64_t draws, const StepPrices& prices) const {
  const auto goal_ns = static_cast<double>(goals_.tpot_goal.ns);
  int64_t fits = std::min(draws + kLeastOfPrompts, most_);
  for (int64_t size = engine::rounded_size(fits);; size = engine::rounded_size(size + 1)) {
    const int64_t tokens = std::min(size, most_);
    if (prices.expected_ns(tokens) > goal_ns) return fits;
    fits = tokens;
    if (fits == most_) return fits;
  }
}

/// The smallest size that is enough; all where none is.
int64_t StepBudget::for_first_token(int64_t draws, std::span<const PromptLeft> prompts, int64_t now_ns,
                                    const StepPrices& prices) const {
  const double goal_ns = kShareOfGoal * static_cast<double>(goals_.ttft_goal.ns);
  const auto is_enough = [&](int64_t size) {
    const double step_ns = prices.expected_ns(size);
    int64_t left = 0;
    return std::all_of(prompts.begin(), prompts.end(), [&](const PromptLeft& prompt) {
      left += prompt.tokens;
      const int64_t steps = (left + size - draws - 1) / (size - draws);
      return static_cast<double>(now_ns - prompt.since_ns) + static_cast<double>(steps) * step_ns <= goal_ns;
    });
  };
  int64_t size = engine::rounded_size(std::min(draws + kLeastOfPrompts, most_));
  while (size < most_ && !is_enough(size)) size = engine::rounded_size(size + 1);
  return std::min(size, most_);
}

int64_t StepBudget::tokens(int64_t draws, std::span<const PromptLeft> prompts, int64_t now_ns,
                           const StepPrices& prices) const {
  int64_t tokens = most_;
  if (draws == 0) return tokens;
  if (goals_.tpot_goal.ns > 0) tokens = std::min(tokens, for_next_token(draws, prices));
  if (goals_.ttft_goal.ns > 0 && !prompts.empty())
    tokens = std::min(tokens, for_first_token(draws, prompts, now_ns, prices));
  return tokens;
}

}  // namespace trireme::sched
