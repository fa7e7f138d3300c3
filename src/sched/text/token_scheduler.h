// Who runs and who waits among the texts of a language model: batches that change with every step, prompts
// taken in chunks beside them.
#pragma once

#include <unordered_map>
#include <vector>

#include "sched/text/token_queue.h"

namespace trireme::sched {

/// One owner thread. A request waits until there is a place and there are pages for its prompt, and shares
/// the full pages of what it begins with where the session remembers them. In each step every text that
/// decodes gets its token, what is left of the session's max_tokens goes to prompts, the oldest first: no gap
/// between two tokens of an answer is longer than a step of max_tokens takes. Where pages run out, the text
/// of the lowest priority that came last is put back: it waits again, and what it ran is computed once more;
/// its answer is not changed by that. A step costs the same however many wait.
class TokenScheduler {
 public:
  /// The session outlives it and is not used by others.
  explicit TokenScheduler(engine::DecodeSession& session) : generator_(session) {}

  engine::GenerateLimits limits() const { return generator_.limits(); }
  /// Numbers requests from 0. Throws what GenerateLimits::check() throws.
  int64_t add(engine::GenerateRequest request, const Standing& standing = {});
  /// Ends a request: its next event is its last. Unknown or finished ones: nothing happens.
  void cancel(int64_t request);
  /// Runs one step; its events. Empty once nothing is left to do. Throws internal where a token has no
  /// probability: the model's logits are no numbers. `now_ns`: for deadlines.
  const std::vector<engine::GenerateEvent>& step(int64_t now_ns = 0);

  /// A request that began in the last step: of so many tokens of its prompt some were known from others.
  struct Begun {
    int64_t request = 0, prompt_tokens = 0, known_tokens = 0;
  };
  /// Those that began for the first time.
  const std::vector<Begun>& begun() const { return begun_; }

  bool is_idle() const {
    return queue_.empty() && ended_.empty() && generator_.size() == 0 && !generator_.is_launched();
  }
  size_t running() const { return generator_.size(); }
  size_t waiting() const { return queue_.size(); }
  /// Share of the pages that texts under way hold.
  double page_use() const {
    return 1 - static_cast<double>(generator_.free_pages()) / static_cast<double>(generator_.pages());
  }
  /// Tokens of prompts that did not run because a text that began alike had.
  int64_t shared_tokens() const { return shared_tokens_; }
  /// Texts that were put back because pages ran out.
  int64_t put_back() const { return put_back_; }
  /// Tokens of prompts and answers of the step whose events were given last.
  int64_t step_tokens() const { return step_tokens_; }

 private:
  void begin_waiting();
  bool fits(const TokenQueue::Entry& first);
  void share_out();
  int64_t missing_pages() const;
  void put_back_last();
  bool launch();
  void account();

  engine::Generator generator_;
  TokenQueue queue_;
  int64_t next_ = 0;
  int64_t step_tokens_ = 0, shared_tokens_ = 0, put_back_ = 0;
  std::unordered_map<int64_t, Standing> standings_;  ///< of those that run
  /// What the pages were like when the first of those who wait did not fit: no need to look again until they
  /// are otherwise.
  struct {
    int64_t number = -1, claimed = 0;
    uint64_t changes = 0;
  } refused_;
  std::vector<int64_t> tokens_;  ///< of each text in the next step
  std::vector<Begun> begun_;
  std::vector<engine::GenerateEvent> events_, ended_;  ///< `ended_`: since the last step
};

}  // namespace trireme::sched
