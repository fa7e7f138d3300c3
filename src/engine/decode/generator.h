// Generates continuations of prompts: batches that change with every step, prompts taken in chunks beside
// them.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/decode/decode_session.h"

namespace trireme::engine {

struct GenerateRequest {
  std::vector<int64_t> prompt;  ///< at least one token
  int64_t max_tokens = 128;     ///< generated at most
  std::vector<int64_t> stop;    ///< tokens that end the answer; they are not part of it
  SamplingOptions sampling = {};
};

enum class FinishReason : uint8_t { none, stop, length, cancelled };
std::string_view to_string(FinishReason reason);

/// A new token of a request, or its end.
struct GenerateEvent {
  int64_t request = 0;  ///< as add() numbered it
  int64_t token = -1;   ///< -1: none, the answer ended at a stop token
  double log_probability = 0;
  FinishReason finish = FinishReason::none;  ///< else the answer is over
};

/// One owner thread. A request waits until there is a place and pages for its prompt and max_tokens; then it
/// runs to its end, so nothing is ever thrown out half way; it shares the full pages of what it begins with,
/// where the session remembers them. In each step every sequence that decodes gets its token, what is left of
/// max_tokens goes to prompts, the oldest first. Where the session's depth allows, the next step is launched
/// before the last one's tokens are here: an answer that ends at a stop token then costs one row more, whose
/// draw nobody sees.
class Generator {
 public:
  /// The session outlives it and is not used by others.
  explicit Generator(DecodeSession& session);
  ~Generator();

  /// Numbers requests from 0. Throws invalid_argument for a prompt that is empty, holds strange tokens or is
  /// longer than the model allows, exhausted for one that could never get its pages. What does not fit behind
  /// the prompt shortens max_tokens.
  int64_t add(GenerateRequest request);
  /// Ends a request: its next event is its last. Unknown or finished ones: nothing happens.
  void cancel(int64_t request);
  /// Runs one step; events in the order of the requests. Empty once nothing is left to do. Throws internal
  /// where a token has no probability: the model's logits are no numbers.
  const std::vector<GenerateEvent>& step();
  bool is_idle() const { return waiting_.empty() && running_.empty() && launched_.empty(); }
  size_t running() const { return running_.size(); }
  size_t waiting() const { return waiting_.size(); }
  /// Tokens of prompts that did not run because a text that began alike had.
  int64_t shared_tokens() const { return shared_tokens_; }
  /// Tokens of prompts and answers of the step whose events were given last.
  int64_t step_tokens() const { return step_tokens_; }

 private:
  struct Running;
  /// A step that is under way.
  struct Launched {
    std::vector<Running*> rows;  ///< whose draws are wanted; null: not, or the request is over
    int64_t tokens = 0;
  };
  void admit();
  void plan(Launched& step);
  bool launch();
  void collect();
  void choose(Running& running, int64_t token, double log_probability);
  void retire();

  DecodeSession& session_;
  int64_t next_ = 0;
  int64_t reserved_pages_ = 0;  // that running requests may still take
  int64_t step_tokens_ = 0, shared_tokens_ = 0;
  std::deque<std::unique_ptr<Running>> waiting_;
  std::vector<std::unique_ptr<Running>> running_;
  std::vector<DecodePiece> pieces_;
  std::deque<Launched> launched_;  // the oldest first
  std::vector<GenerateEvent> events_;
};

}  // namespace trireme::engine
