// How many tokens a step runs, so that first tokens and the next ones come in time.
#pragma once

#include <cstdint>
#include <span>

#include "base/text/options.h"
#include "sched/text/step_prices.h"

namespace trireme::sched {

/// Times that clients should see; 0: none is wanted.
struct TextGoals {
  base::Duration ttft_goal{0};  ///< from arrival to the first token
  base::Duration tpot_goal{0};  ///< between two tokens of an answer

  void fields(base::OptionList& f) {
    f.add("ttft_goal", &ttft_goal,
          "goal of the time to the first token: beside answers under way prompts are read only as fast as it "
          "takes; 0: as fast as --chunk allows");
    f.add("tpot_goal", &tpot_goal,
          "goal of the time between two tokens: a step with answers under way reads no more of prompts than "
          "fits into it, by measured prices of steps; 0: as much as --chunk allows");
  }
};

/// A prompt under way.
struct PromptLeft {
  int64_t tokens = 0;    ///< that have not run
  int64_t since_ns = 0;  ///< when it was asked
};

/// The fewest tokens by which all prompts are read within the goal for the first token, as they stand one
/// behind another, but no more than fit into the goal between tokens. At least some tokens of a prompt run in
/// every step, or they would wait for ever where answers alone take longer than the goal. `most`: of any
/// step; without goals and without answers under way (`draws` is 0) that is it.
class StepBudget {
 public:
  StepBudget(const TextGoals& goals, int64_t most) : goals_(goals), most_(most) {}
  bool has_goals() const { return goals_.ttft_goal.ns > 0 || goals_.tpot_goal.ns > 0; }
  int64_t tokens(int64_t draws, std::span<const PromptLeft> prompts, int64_t now_ns,
                 const StepPrices& prices) const;

 private:
  int64_t for_next_token(int64_t draws, const StepPrices& prices) const;
  int64_t for_first_token(int64_t draws, std::span<const PromptLeft> prompts, int64_t now_ns,
                          const StepPrices& prices) const;

  TextGoals goals_;
  int64_t most_;
};

}  // namespace trireme::sched
