// Generates continuations of prompts: the texts under way, their steps and draws.
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
  /// So many tokens at the end of `prompt` are the answer's first, which were given already: the next draw is
  /// the one behind them. What Generator::put_back() leaves.
  int64_t answered = 0;
};

/// `expired`: its deadline passed while it waited.
enum class FinishReason : uint8_t { none, stop, length, cancelled, expired };
std::string_view to_string(FinishReason reason);

/// A new token of a request, or its end.
struct GenerateEvent {
  int64_t request = 0;  ///< its number
  int64_t token = -1;   ///< -1: none, the answer ended at a stop token
  double log_probability = 0;
  FinishReason finish = FinishReason::none;  ///< else the answer is over
};

/// What a session can take at the longest.
struct GenerateLimits {
  int64_t max_length = 0;  ///< tokens of prompt and answer
  int64_t vocabulary = 0;
  int64_t pages = 0, page_tokens = 0;

  /// Throws invalid_argument for a prompt that is empty, holds strange tokens or is longer than the model
  /// allows, exhausted for one that could never get its pages. What does not fit behind the prompt shortens
  /// max_tokens.
  void check(GenerateRequest& request) const;
};

/// Continues the texts that it was given, step by step; who is given, and how many tokens each runs in a
/// step, is decided elsewhere (sched/text/token_scheduler.h). Where the session's depth allows, the next step
/// is launched before the last one's tokens are here: an answer that ends at a stop token then costs one row
/// more, whose draw nobody sees. One owner thread.
class Generator {
 public:
  /// The session outlives it and is not used by others.
  explicit Generator(DecodeSession& session);
  ~Generator();

  GenerateLimits limits() const;
  /// Tokens of the prompt that need not run, since a text that began alike had; and the pages that could be
  /// taken besides those it would hold.
  DecodeSession::Beginning look(std::span<const int64_t> prompt) { return session_.look(prompt); }
  /// Begins a text that the limits allow; `number` names it in events.
  void start(int64_t number, GenerateRequest request);
  /// Stops text i and gives back its pages, which others may still share. What is returned goes on with it
  /// once it is started again: the same tokens follow, on the CPU to the bit.
  GenerateRequest put_back(size_t i);
  /// Ends a text: its next event is its last. Unknown or finished ones: nothing happens.
  void cancel(int64_t number);

  /// Texts under way, in the order in which they were started.
  size_t size() const { return running_.size(); }
  int64_t number(size_t i) const;
  /// The tokens that text i began with.
  int64_t prompt_size(size_t i) const;
  /// Tokens of the prompt of text i that have not run. 0: it draws.
  int64_t prompt_left(size_t i) const;
  /// Whether text i has draws that are not launched.
  bool can_draw(size_t i) const;
  /// Pages that text i takes for so many more tokens.
  int64_t pages_for(size_t i, int64_t tokens) const;
  /// Pages that nobody holds, or that are only remembered; and all that there are.
  int64_t free_pages() const { return session_.free_pages(); }
  int64_t pages() const { return session_.pool().pages(); }
  /// Grows whenever a page is taken or given back.
  uint64_t page_changes() const { return session_.pool().changes(); }
  const DecodeOptions& options() const { return session_.options(); }

  /// Ends cancelled texts, and gives back what finished ones hold.
  void clean(std::vector<GenerateEvent>& events);
  /// Whether a step may be launched before one is collected.
  bool can_launch() const { return static_cast<int>(launched_.size()) < session_.depth(); }
  bool is_launched() const { return !launched_.empty(); }
  /// Launches a step: of text i the next tokens[i] tokens of its prompt, or a draw. False where there are
  /// none.
  bool launch(std::span<const int64_t> tokens);
  /// The oldest step's tokens, in the order of the texts; how many tokens of prompts and answers it ran.
  /// Throws internal where a token has no probability: the model's logits are no numbers.
  int64_t collect(std::vector<GenerateEvent>& events);

 private:
  struct Running;
  /// A step that is under way.
  struct Launched {
    std::vector<Running*> rows;  ///< whose draws are wanted; null: not, or the text is over
    int64_t tokens = 0;
  };
  DecodePiece next_piece(Running& running, int64_t tokens, int32_t row) const;
  void choose(Running& running, int64_t token, double log_probability, std::vector<GenerateEvent>& events);
  void retire();
  void forget_rows(const Running& running);

  DecodeSession& session_;
  std::vector<std::unique_ptr<Running>> running_;
  std::vector<DecodePiece> pieces_;
  std::deque<Launched> launched_;  // the oldest first
};

}  // namespace trireme::engine
