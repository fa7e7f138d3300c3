// Who runs and who waits among the texts of a language model: batches that change with every step, prompts
// taken in chunks beside them.
#pragma once

#include <deque>
#include <vector>

#include "engine/decode/generator.h"

namespace trireme::sched {

/// One owner thread. A request waits until there is a place and pages for its prompt and max_tokens; then it
/// runs to its end, so nothing is ever thrown out half way; it shares the full pages of what it begins with,
/// where the session remembers them. In each step every text that decodes gets its token, what is left of the
/// session's max_tokens goes to prompts, the oldest first. A step costs the same however many wait.
class TokenScheduler {
 public:
  /// The session outlives it and is not used by others.
  explicit TokenScheduler(engine::DecodeSession& session) : generator_(session) {}

  /// Numbers requests from 0. Throws what Generator::check() throws.
  int64_t add(engine::GenerateRequest request);
  /// Ends a request: its next event is its last. Unknown or finished ones: nothing happens.
  void cancel(int64_t request);
  /// Runs one step; events in the order of the requests. Empty once nothing is left to do. Throws internal
  /// where a token has no probability: the model's logits are no numbers.
  const std::vector<engine::GenerateEvent>& step();
  bool is_idle() const { return waiting_.empty() && generator_.size() == 0 && !generator_.is_launched(); }
  size_t running() const { return generator_.size(); }
  size_t waiting() const { return waiting_.size(); }
  /// Tokens of prompts that did not run because a text that began alike had.
  int64_t shared_tokens() const { return shared_tokens_; }
  /// Tokens of prompts and answers of the step whose events were given last.
  int64_t step_tokens() const { return step_tokens_; }

 private:
  struct Waiting {
    int64_t number = 0;
    engine::GenerateRequest request;
    int64_t pages = 0;  ///< at the longest
    bool is_cancelled = false;
  };
  void admit();
  bool fits(const Waiting& first);
  bool launch();

  engine::Generator generator_;
  int64_t next_ = 0;
  int64_t step_tokens_ = 0, shared_tokens_ = 0;
  std::deque<Waiting> waiting_;
  /// What the pages were like when the first of those who wait did not fit: no need to look again until they
  /// are otherwise.
  struct {
    int64_t number = -1, reserved = 0;
    uint64_t changes = 0;
  } refused_;
  std::vector<int64_t> tokens_;  ///< of each text in the next step
  std::vector<engine::GenerateEvent> events_;
};

}  // namespace trireme::sched
