// Drafts by a smaller model of the same tokens, which follows the texts with pages of its own.
#pragma once

#include <memory>
#include <unordered_map>
#include <vector>

#include "engine/decode/decode_session.h"
#include "engine/decode/drafter.h"
#include "engine/decode/speculation_options.h"

namespace trireme::engine {

/// Draws with the seeds and the numbers that the checked draws have, so that two models which nearly agree
/// draw the same tokens. A text that it has not read yet is read in steps of the session's max_tokens, one
/// for each call, and has no drafts until then; one for which it has no pages, or which is longer than it
/// knows, has none.
class DraftModel final : public Drafter {
 public:
  /// `vocabulary`: tokens of the model that checks. The draft may know some more or fewer, as filled-up
  /// vocabularies do: such tokens are not drafted, and texts that hold them are not followed.
  DraftModel(std::unique_ptr<DecodeSession> session, int64_t vocabulary);
  ~DraftModel() override;

  void draft(std::span<const DraftWish> wishes) override;
  void forget(int64_t text) override;
  bool runs_steps() const override { return true; }
  int64_t memory_bytes() const override {
    return session_->pool().bytes() + session_->ranks().first().arena_bytes();
  }
  const DecodeSession& session() const { return *session_; }

 private:
  struct Text {
    SequenceId sequence = -1;
    size_t read = 0;                  // tokens of the text that the sequence holds
    std::vector<int64_t> ahead = {};  // drafts that it holds behind them
    bool is_strange = false;          // it has tokens that the draft does not know
    bool is_kept = false;             // others that begin so share its pages
  };
  /// A wish under way in one call.
  struct Under {
    const DraftWish* wish;
    Text* text;
    size_t row = 0;
  };
  Text* follow(const DraftWish& wish);
  void drop(Text& text);
  void begin(std::span<const DraftWish> wishes);
  void go_on();

  std::unique_ptr<DecodeSession> session_;
  int64_t vocabulary_;
  std::unordered_map<int64_t, Text> texts_;
  std::vector<Under> under_;
  std::vector<DecodePiece> pieces_;
};

/// What a session for drafts is like beside the one that checks: on one rank, with memory of its own.
DecodeOptions draft_options(DecodeOptions checking, const SpeculationOptions& options);

/// Who guesses for a model of `vocabulary` tokens: null where nobody does. `draft`: the smaller model, opened
/// with `session`, which are draft_options(); not looked at where none is asked for.
std::unique_ptr<Drafter> make_drafter(const SpeculationOptions& options, int64_t vocabulary,
                                      std::shared_ptr<const DecodeModel> draft, const DecodeOptions& session);

}  // namespace trireme::engine
