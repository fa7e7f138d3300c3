// Grammars that answers follow: compiled once, shared by the answers of a model, each of which is a filter of
// its own.
#pragma once

#include <memory>

#include "base/memory/memory_budget.h"
#include "data/grammar/matcher.h"
#include "engine/decode/draw_form.h"

namespace trireme::sched {

/// A grammar over the tokens of one model. Any thread makes it; its filters are used by one thread, the one
/// that runs the model's steps. What it holds counts as scratch memory of the process.
class AnswerGrammar {
 public:
  /// Finds what an answer may begin with, so that nobody waits for that later. Throws invalid_argument for a
  /// grammar with too many ways to begin, exhausted where memory is short.
  AnswerGrammar(data::Grammar grammar, std::shared_ptr<const data::TokenTrie> tokens);

  /// The filter of an answer that has not begun. Its mask() and accept() throw invalid_argument where the
  /// grammar leads to more than can be followed, exhausted where memory is short.
  static std::unique_ptr<engine::TokenFilter> filter(std::shared_ptr<AnswerGrammar> grammar);

  /// Any thread: about what it holds, and whether it finds nothing new any more.
  int64_t bytes() const { return automaton_->bytes(); }
  bool is_full() const { return automaton_->is_full(); }

 private:
  friend class GrammarFilter;
  const std::shared_ptr<data::GrammarAutomaton> automaton_;
  const std::shared_ptr<const data::TokenTrie> tokens_;
  base::MemoryLease room_;  ///< of the automaton
};

}  // namespace trireme::sched
