// Texts that begin: what another one is reading already is read once, and the others wait for it.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "engine/decode/generator.h"
#include "sched/text/token_queue.h"

namespace trireme::sched {

/// Pages of a prompt are known to others once all of it was launched. A text that begins with more full
/// pages of a prompt under way than are known already keeps its place among the texts under way and runs
/// nothing, until the other one is through with its prompt, or has ended: then it goes on behind the pages
/// that are known by now. It waits only for texts that were started before it. Those read first in any case,
/// so that it gives up no more by waiting than what is left of a step, and there is always one that reads.
/// Prompts that are scored run whole: they neither wait nor are waited for. One owner thread.
class SharedReading {
 public:
  /// A request that began: of so many tokens of its prompt some were known from others.
  struct Begun {
    int64_t request = 0, prompt_tokens = 0, known_tokens = 0;
    int64_t handed_tokens = 0;  ///< that another session had computed
  };

  /// All outlive it. `standings`: of the texts under way, also of one that is started. What tenants are given
  /// of a prompt is charged to `queue`.
  SharedReading(engine::Generator& generator, TokenQueue& queue,
                const std::unordered_map<int64_t, Standing>& standings)
      : generator_(generator), queue_(queue), standings_(standings) {}

  /// Starts a text.
  void start(TokenQueue::Entry entry);
  /// Texts go on that wait for what was read, or will not be.
  void go_on();
  /// Whether text i of the generator waits.
  bool waits(size_t i) const { return waiting_.contains(generator_.number(i)); }
  /// A text is not under way any more. False where it waited and has never begun to read.
  bool forget(int64_t number);

  /// Those that began to read for the first time since clear_begun().
  const std::vector<Begun>& begun() const { return begun_; }
  void clear_begun() { begun_.clear(); }
  /// Tokens of prompts that did not run because a text that began alike had.
  int64_t shared_tokens() const { return shared_tokens_; }

 private:
  struct Waiting {
    int64_t reader = -1;     ///< the number of the text that it waits for
    bool has_begun = false;  ///< it ran before and was put back
  };
  int64_t reader_of(size_t i) const;
  void begin(size_t i, int64_t handed_tokens);

  engine::Generator& generator_;
  TokenQueue& queue_;
  const std::unordered_map<int64_t, Standing>& standings_;
  std::unordered_map<int64_t, Waiting> waiting_;  ///< by number
  std::vector<Begun> begun_;
  int64_t shared_tokens_ = 0;
};

}  // namespace trireme::sched
