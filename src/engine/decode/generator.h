// Generates continuations of prompts: the texts under way, their steps and draws.
#pragma once

#include <algorithm>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "engine/decode/decode_session.h"
#include "engine/decode/drafter.h"

namespace trireme::engine {

struct GenerateRequest {
  std::vector<int64_t> prompt;  ///< at least one token
  int64_t max_tokens = 128;     ///< generated at most
  std::vector<int64_t> stop;    ///< tokens that end the answer; they are not part of it
  SamplingOptions sampling = {};
  /// What may come next; has accepted the answer's tokens. Null: anything. Of this request alone.
  std::shared_ptr<TokenFilter> filter = nullptr;
  std::vector<TokenBias> biases = {};  ///< each of another token
  int64_t least_tokens = 0;            ///< so many come before one of `stop` may
  int64_t likeliest = 0;               ///< so many of the likeliest tokens are told with each, at most 20
  /// The tokens of the prompt are told, too, with their chances; it runs whole, whatever is known of it.
  bool scores_prompt = false;
  std::shared_ptr<const LoadedAdapter> adapter = nullptr;  ///< of the session's model; null: the model alone
  /// So many tokens at the end of `prompt` are the answer's first, which were given already: the next draw is
  /// the one behind them. What Generator::put_back() leaves.
  int64_t answered = 0;
  std::string salt = {};  ///< only texts of the same one share beginnings
  /// Pages of the prompt that another session of the model computed; null: none. Used when it begins.
  std::shared_ptr<const HandedPages> handed = nullptr;
  /// Who is given the prompt's pages as they are computed; null: nobody.
  std::shared_ptr<PageTaker> taker = nullptr;

  TextOrigin origin() const { return {adapter.get(), salt}; }
};

/// `expired`: its deadline passed while it waited. `failed`: it cannot go on, see GenerateEvent::error.
enum class FinishReason : uint8_t { none, stop, length, cancelled, expired, failed };
std::string_view to_string(FinishReason reason);

/// A new token of a request, or its end.
struct GenerateEvent {
  int64_t request = 0;  ///< its number
  int64_t token = -1;   ///< -1: none, the answer ended at a stop token
  double log_probability = 0;
  FinishReason finish = FinishReason::none;  ///< else the answer is over
  std::vector<TokenChance> likeliest = {};   ///< that might have come in its place, the likeliest first
  std::shared_ptr<const base::Error> error = nullptr;  ///< of an answer that failed
  /// With the first token, where the prompt is scored: its tokens but the first.
  std::vector<ScoredToken> prompt = {};
};

/// What became of the drafts that a step ran for a text.
struct CheckedDrafts {
  int64_t request = 0;  ///< its number
  int64_t drafted = 0;  ///< tokens
  int64_t accepted = 0;
  int64_t guessed = 0;  ///< with those that did not run, since the text's filter did not let them come
};

/// What was spent on masks so far, beside the steps.
struct MaskCost {
  int64_t masks = 0, ns = 0;
};

/// What a session can take at the longest.
struct GenerateLimits {
  int64_t max_length = 0;  ///< tokens of prompt and answer
  int64_t vocabulary = 0;
  int64_t pages = 0, page_tokens = 0;

  /// Tokens of prompt and answer for which there are pages, too.
  int64_t most_length() const { return std::min(max_length, pages * page_tokens); }
  /// Throws invalid_argument for a prompt that is empty, holds strange tokens or is longer than the model
  /// allows, for biases that are too many or of strange tokens, exhausted for one that could never get its
  /// pages. What does not fit behind the prompt shortens max_tokens.
  void check(GenerateRequest& request) const;
};

/// Continues the texts that it was given, step by step; who is given, and how many tokens each runs in a
/// step, is decided elsewhere (sched/text/token_scheduler.h). Where the session's depth allows, the next step
/// is launched before the last one's tokens are here: an answer that ends at a stop token then costs one row
/// more, whose draw nobody sees. A text with a filter waits for its token, which says what may come next: the
/// others go on.
///
/// With a drafter a step may run several tokens of an answer: the last one and guesses of the next. Each has
/// its draw, by the number that it would have had alone, and as long as a draw is the token that was guessed,
/// the next row's draw is the next token. What the guesses were wrong about is taken back. So tokens and
/// chances are those of steps without guesses. One owner thread.
class Generator {
 public:
  /// The session outlives it and is not used by others; so does the drafter. Null: nothing is guessed.
  explicit Generator(DecodeSession& session, Drafter* drafter = nullptr);
  ~Generator();

  GenerateLimits limits() const;
  /// Tokens of its prompt that need not run, since a text that began alike had; and the pages that could be
  /// taken besides those it would hold.
  DecodeSession::Beginning look(const GenerateRequest& r) { return session_.look(r.prompt, r.origin()); }
  /// Has what the session's store knows of the request's beginning loaded, beside the steps, for start() to
  /// take. False: it is on its way.
  bool fetch(int64_t number, const GenerateRequest& request);
  /// Begins a text that the limits allow; `number` names it in events.
  void start(int64_t number, GenerateRequest request);
  /// Text i, of which nothing ran, goes on behind what has become known of its prompt since it was started.
  void reopen(size_t i);
  /// Stops text i and gives back its pages, which others may still share. What is returned goes on with it
  /// once it is started again: the same tokens follow, on the CPU to the bit.
  GenerateRequest put_back(size_t i);
  /// Ends a text: its next event is its last. Unknown or finished ones: nothing happens.
  void cancel(int64_t number);

  /// Texts under way, in the order in which they were started.
  size_t size() const { return running_.size(); }
  int64_t number(size_t i) const;
  /// Tokens of the prompt of text i that have not run. 0: it draws.
  int64_t prompt_left(size_t i) const;
  /// That of text i, valid until the text ends. Each token of a prompt that is scored takes a row of the
  /// step, of which there are DecodeOptions::max_sequences.
  const GenerateRequest& request(size_t i) const;
  /// Whether text i has draws that can be launched.
  bool can_draw(size_t i) const;
  /// How many tokens of text i may be guessed behind its next draw.
  int64_t most_drafts(size_t i) const;
  /// Has tokens guessed, of text i at most most[i]: none while its last token is under way. Where that is
  /// above 0, the text also waits for its tokens from then on.
  void draft(std::span<const int64_t> most);
  /// Tokens that are guessed for text i.
  int64_t drafts(size_t i) const;
  /// Pages that text i takes for so many more tokens.
  int64_t pages_for(size_t i, int64_t tokens) const;
  /// Pages that nobody holds, or that are only remembered; and all that there are.
  int64_t free_pages() const { return session_.free_pages(); }
  DecodeSession& session() { return session_; }
  const DecodeOptions& options() const { return session_.options(); }

  /// Ends texts that are cancelled or cannot go on, and gives back what finished ones hold.
  void clean(std::vector<GenerateEvent>& events);
  /// Whether a step may be launched before one is collected.
  bool can_launch() const { return static_cast<int>(launched_.size()) < session_.depth(); }
  bool is_launched() const { return !launched_.empty(); }
  /// Launches a step: of text i the next tokens[i] tokens of its prompt, or a draw, with tokens[i] - 1 of its
  /// drafts behind it, as far as the text's filter lets them come. False where there are none.
  bool launch(std::span<const int64_t> tokens);
  /// The oldest step's tokens, in the order of the texts; how many tokens of prompts and answers it ran.
  /// A text fails whose token has no probability, because its logits are no numbers.
  int64_t collect(std::vector<GenerateEvent>& events);
  /// Of that step.
  const std::vector<CheckedDrafts>& checked() const { return checked_; }
  const MaskCost& mask_cost() const { return mask_cost_; }

 private:
  struct Running;
  /// A step that is under way.
  struct Launched {
    /// What a piece draws.
    struct Drawn {
      Running* text = nullptr;  ///< null: nobody wants it, or the text is over
      size_t drafts = 0;        ///< that run behind the text's last token
      size_t guessed = 0;       ///< with those that the text's filter did not let come
      size_t row = 0;           ///< of the draws but the last, behind those of pieces
    };
    std::vector<Drawn> drawn;  ///< by pieces
    int64_t tokens = 0;
    /// Tokens of a prompt that are scored.
    struct Scored {
      Running* text = nullptr;  ///< null: it is over
      size_t first = 0;         ///< of the prompt
      size_t count = 0;
      size_t row = 0;       ///< of the first, behind those of pieces
      size_t last_row = 0;  ///< of the last, where that is a piece's own
      bool has_last = false;
    };
    std::vector<Scored> scored = {};
    /// Nobody waits for what is drawn for this text.
    void forget(const Running& running);
  };
  void take(const Launched::Drawn& piece, const DecodeSession::Drawn& drawn, size_t last_row,
            std::vector<GenerateEvent>& events);
  void choose(Running& running, const DecodeSession::Drawn& drawn, size_t row,
              std::vector<GenerateEvent>& events);
  static void take_scores(const Launched& step, const DecodeSession::Drawn& drawn);
  void retire();

  DecodeSession& session_;
  Drafter* drafter_;
  std::vector<std::unique_ptr<Running>> running_;
  std::vector<DecodePiece> pieces_;
  std::vector<DraftWish> wishes_;
  std::vector<CheckedDrafts> checked_;
  std::deque<Launched> launched_;  // the oldest first
  MaskCost mask_cost_;
};

}  // namespace trireme::engine
