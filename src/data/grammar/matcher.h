// Follows an answer through a grammar byte by byte, and says which tokens may come next.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "data/grammar/grammar.h"
#include "data/text/tokenizer.h"

namespace trireme::data {

/// The tokens of a vocabulary as a trie over their bytes. Immutable; any thread; shared by all answers.
class TokenTrie {
 public:
  /// Special tokens, and those without bytes, are in no answer; `end` are tokens that end one.
  TokenTrie(const Tokenizer& tokenizer, std::vector<int64_t> end);

  struct Node {
    uint32_t first_child = 0, children = 0;  ///< nodes that follow one another
    uint32_t first_token = 0, tokens = 0;    ///< ids in tokens() that end here
    uint8_t byte = 0;
  };
  const std::vector<Node>& nodes() const { return nodes_; }  ///< [0] is the root
  const std::vector<int32_t>& tokens() const { return tokens_; }
  const std::vector<int64_t>& end() const { return end_; }
  int64_t vocabulary_size() const { return size_; }
  std::string_view bytes_of(int64_t id) const;

 private:
  std::vector<Node> nodes_;
  std::vector<int32_t> tokens_;
  std::vector<std::string> bytes_;
  std::vector<int64_t> end_;
  int64_t size_ = 0;
};

/// A bit a token: bit id % 64 of word id / 64.
using TokenMask = std::vector<uint64_t>;

/// A grammar as an automaton with stacks whose states are found as they are met and kept. One thread; answers
/// of the same grammar share one.
class GrammarAutomaton {
 public:
  explicit GrammarAutomaton(Grammar grammar);

  using State = uint32_t;
  static constexpr State kDead = 0;
  State start() const { return start_; }
  /// kDead where the byte cannot come. Throws exhausted where the grammar is so ambiguous, or nests so
  /// deeply, that its states do not fit a million stacks.
  State step(State from, uint8_t byte);
  State step(State from, std::string_view bytes);
  /// The text so far is a whole answer.
  bool is_complete(State state) const { return states_[state].is_complete; }
  /// The tokens that may come next, those of the end where the answer is whole; kept for each state.
  const TokenMask& mask(State state, const TokenTrie& tokens);

 private:
  /// A stack: the place in a row that is to come next, on top of another stack. 0 is the empty one.
  struct Stack {
    uint32_t row = 0, place = 0, below = 0;
  };
  struct Row {
    uint32_t first = 0, size = 0;  // in symbols_
  };
  struct StateData {
    std::vector<uint32_t> stacks;  // each with bytes on top; ascending
    bool is_complete = false;
    std::vector<State> next;  // by byte, empty before the first step
  };
  static constexpr State kUnknown = UINT32_MAX;

  uint32_t stack_of(uint32_t row, uint32_t place, uint32_t below);
  void close(std::vector<uint32_t> open, StateData& state);
  State state_of(StateData state);
  void fill(State state, const TokenTrie& tokens, uint32_t node, TokenMask& mask);

  std::vector<Grammar::Symbol> symbols_;
  std::vector<Row> rows_;
  std::vector<std::pair<uint32_t, uint32_t>> rules_;  // first row, rows
  std::vector<ByteSet> sets_;
  std::vector<Stack> stacks_{{}};
  std::unordered_map<uint64_t, std::vector<uint32_t>> stack_ids_;
  std::vector<StateData> states_;
  std::unordered_map<uint64_t, std::vector<State>> state_ids_;
  std::unordered_map<State, TokenMask> masks_;
  size_t held_ = 0;  // stacks of all states
  State start_ = 0;
};

/// One answer.
class GrammarMatcher {
 public:
  GrammarMatcher(std::shared_ptr<GrammarAutomaton> automaton, std::shared_ptr<const TokenTrie> tokens)
      : automaton_(std::move(automaton)), tokens_(std::move(tokens)), state_(automaton_->start()) {}

  const TokenMask& mask() { return automaton_->mask(state_, *tokens_); }
  /// Takes a token of the mask; false: it cannot come here.
  bool accept(int64_t token);
  /// Whether the text so far is a whole answer, and whether nothing may follow it.
  bool is_complete() const { return automaton_->is_complete(state_); }

 private:
  std::shared_ptr<GrammarAutomaton> automaton_;
  std::shared_ptr<const TokenTrie> tokens_;
  GrammarAutomaton::State state_;
};

}  // namespace trireme::data
