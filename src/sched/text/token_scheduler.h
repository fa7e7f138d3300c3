// Who runs and who waits among the texts of a language model: batches that change with every step, prompts
// taken in chunks beside them.
#pragma once

#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "sched/text/drafting.h"
#include "sched/text/shared_reading.h"
#include "sched/text/step_budget.h"
#include "sched/text/step_meter.h"
#include "sched/text/token_queue.h"

namespace trireme::sched {

struct TextSchedule {
  /// Measures steps; the same that now_ns of TokenScheduler::step() comes from. Null: nobody does, and goals
  /// are not looked at.
  const base::Clock* clock = nullptr;
  engine::Drafter* drafter = nullptr;  ///< null: nothing is guessed
  int64_t draft_tokens = 8;            ///< that are guessed for a text, at most
  TextGoals goals = {};
};

/// One owner thread. A request waits until there is a place and there are pages for its prompt, and shares
/// the full pages of what it begins with where the session remembers them, or where a text under way is
/// reading them (SharedReading). In each step every text that decodes gets its token, what is left of the
/// session's max_tokens, or of what the goals allow, goes to prompts, the oldest first: no gap between two
/// tokens of an answer is longer than a step of max_tokens takes. What is left then goes to guessed tokens,
/// as far as they pay. Where pages run out, the text of the lowest priority that came last is put back: it
/// waits again, and what it ran is computed once more; its answer is not changed by that. A step costs the
/// same however many wait.
class TokenScheduler {
 public:
  /// The session outlives it and is not used by others, nor are what `schedule` points to.
  explicit TokenScheduler(engine::DecodeSession& session, const TextSchedule& schedule = {})
      : generator_(session, schedule.drafter),
        meter_(schedule.clock),
        budget_(schedule.goals, session.options().max_tokens),
        drafting_(
            generator_,
            {.drafter = schedule.drafter, .most = schedule.draft_tokens, .runs_ahead = session.depth() > 1}) {
  }

  engine::GenerateLimits limits() const { return generator_.limits(); }
  /// Numbers requests from 0. Throws what GenerateLimits::check() throws.
  int64_t add(engine::GenerateRequest request, const Standing& standing = {});
  /// Ends a request: its next event is its last. Unknown or finished ones: nothing happens.
  void cancel(int64_t request);
  /// Runs one step; its events, which may be none before all is done. A request fails whose token has no
  /// probability, because its logits are no numbers. `now_ns`: for deadlines.
  const std::vector<engine::GenerateEvent>& step(int64_t now_ns = 0);

  using Begun = SharedReading::Begun;
  /// Requests that began to read their prompts in the last step, for the first time.
  const std::vector<Begun>& begun() const { return reading_.begun(); }

  bool is_idle() const {
    return queue_.empty() && ended_.empty() && generator_.size() == 0 && !generator_.is_launched();
  }
  size_t running() const { return generator_.size(); }
  size_t waiting() const { return queue_.size(); }
  /// Of these, those that run in what others leave.
  size_t waiting_background() const { return queue_.size_of(kBackground); }
  /// Share of the pages that texts under way hold.
  double page_use() const {
    return 1 - static_cast<double>(generator_.free_pages()) / static_cast<double>(limits().pages);
  }
  /// Tokens of prompts that did not run because a text that began alike had.
  int64_t shared_tokens() const { return reading_.shared_tokens(); }
  /// Texts that were put back because pages ran out.
  int64_t put_back() const { return counts_.put_back; }
  const engine::MaskCost& mask_cost() const { return generator_.mask_cost(); }
  const DraftCounts& draft_counts() const { return drafting_.counts(); }
  /// Tokens of prompts, of answers and guessed ones of the step whose events were given last.
  int64_t step_tokens() const { return counts_.step_tokens; }

 private:
  void begin_waiting();
  size_t foreground() const;
  bool fits(const TokenQueue::Entry& first);
  int64_t budget() const;
  int64_t share_out();
  int64_t missing_pages() const;
  void put_back_last();
  bool launch();
  void account();

  engine::Generator generator_;
  StepMeter meter_;
  const StepBudget budget_;
  Drafting drafting_;
  TokenQueue queue_;
  int64_t next_ = 0;
  struct {
    int64_t step_tokens = 0, put_back = 0;
  } counts_;
  std::unordered_map<int64_t, Standing> standings_;  ///< of those that run
  SharedReading reading_{generator_, queue_, standings_};
  /// What the pages were like when the first of those who wait did not fit: no need to look again until they
  /// are otherwise.
  struct {
    int64_t number = -1, claimed = 0;
    uint64_t changes = 0;
    bool is_loading = false;  ///< it fits, and waits for pages that are on their way from a store
  } refused_;
  std::vector<int64_t> tokens_;                        ///< of each text in the next step
  std::vector<engine::GenerateEvent> events_, ended_;  ///< `ended_`: since the last step
};

}  // namespace trireme::sched
