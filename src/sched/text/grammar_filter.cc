// Grammars that answers follow.
#include "sched/text/grammar_filter.h"

#include <utility>

#include "base/error.h"

namespace trireme::sched {
namespace {

/// Memory is asked for in pieces of this size: an automaton grows by little at a time.
constexpr int64_t kPieceBytes = 64 << 10;

/// What a grammar cannot do is the fault of the request that brought it.
template <class Use>
auto blame_request(const Use& use) -> decltype(use()) {
  try {
    return use();
  } catch (const base::Error& e) {
    if (e.code() != base::ErrorCode::exhausted) throw;
    throw base::Error(base::ErrorCode::invalid_argument, e.message());
  }
}

void hold(base::MemoryLease& room, int64_t bytes) {
  if (bytes > room.bytes()) room.resize(bytes + kPieceBytes);
}

}  // namespace

class GrammarFilter final : public engine::TokenFilter {
 public:
  explicit GrammarFilter(std::shared_ptr<AnswerGrammar> grammar)
      : grammar_(std::move(grammar)), matcher_(grammar_->automaton_, grammar_->tokens_) {}

  std::span<const uint64_t> mask() override {
    const data::TokenMask& mask = blame_request([&]() -> const data::TokenMask& { return matcher_.mask(); });
    // An answer for which the shared automaton had no room goes on with one of its own.
    const bool is_shared = &matcher_.automaton() == grammar_->automaton_.get();
    hold(is_shared ? grammar_->room_ : own_room_, matcher_.automaton().bytes());
    return mask;
  }

  void accept(int64_t token) override {
    const bool is_taken = blame_request([&] { return matcher_.accept(token); });
    base::check(is_taken, "token ", token, " is outside of its mask");
  }

  std::unique_ptr<engine::TokenFilter> fork() const override {
    auto made = std::make_unique<GrammarFilter>(grammar_);
    made->matcher_ = matcher_;
    return made;
  }

 private:
  const std::shared_ptr<AnswerGrammar> grammar_;
  data::GrammarMatcher matcher_;
  base::MemoryLease own_room_{base::MemoryUse::scratch, 0};
};

AnswerGrammar::AnswerGrammar(data::Grammar grammar, std::shared_ptr<const data::TokenTrie> tokens)
    : automaton_(blame_request([&] { return std::make_shared<data::GrammarAutomaton>(std::move(grammar)); })),
      tokens_(std::move(tokens)),
      room_(base::MemoryUse::scratch, 0) {
  blame_request([&] { return automaton_->mask(automaton_->start(), *tokens_); });
  hold(room_, automaton_->bytes());
}

std::unique_ptr<engine::TokenFilter> AnswerGrammar::filter(std::shared_ptr<AnswerGrammar> grammar) {
  return std::make_unique<GrammarFilter>(std::move(grammar));
}

}  // namespace trireme::sched
