// Follows an answer through a grammar byte by byte, and says which tokens may come next.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "data/grammar/grammar.h"
#include "data/text/tokenizer.h"

namespace trireme::data {

/// The tokens of a vocabulary as a trie over their bytes. Immutable; any thread; shared by all answers.
class TokenTrie {
 public:
  /// Letters, digits and most signs of ASCII: what stands inside of a JSON string for itself.
  static bool is_plain(uint8_t byte) { return byte >= 0x20 && byte < 0x7F && byte != '"' && byte != '\\'; }
  /// Special tokens, and those without bytes, are in no answer; `end` are tokens that end one, of which those
  /// that the tokenizer does not have are left out. Throws unsupported where none is left.
  TokenTrie(const Tokenizer& tokenizer, std::vector<int64_t> end);

  struct Node {
    uint32_t first_child = 0, children = 0;  ///< nodes that follow one another
    uint32_t first_token = 0, tokens = 0;    ///< ids in tokens() that end here
    uint32_t last_token = 0;                 ///< behind those that end here or below
    uint8_t byte = 0;
    bool is_plain = false;  ///< all bytes below are is_plain()
    uint16_t height = 0;    ///< bytes of the longest token below, from here on
  };
  const std::vector<Node>& nodes() const { return nodes_; }  ///< [0] is the root
  const std::vector<int32_t>& tokens() const { return tokens_; }
  const std::vector<int64_t>& end() const { return end_; }
  int64_t vocabulary_size() const { return size_; }
  std::string_view bytes_of(int64_t id) const;
  /// About what it holds.
  int64_t bytes() const;

 private:
  std::vector<Node> nodes_;
  std::vector<int32_t> tokens_;
  std::vector<std::string> bytes_;
  std::vector<int64_t> end_;
  int64_t size_ = 0;
};

/// A bit a token: bit id % 64 of word id / 64.
using TokenMask = std::vector<uint64_t>;

/// A grammar as an automaton with stacks whose states are found as they are met and kept. One thread, but for
/// bytes() and is_full(); answers of the same grammar share one.
class GrammarAutomaton {
 public:
  explicit GrammarAutomaton(Grammar grammar);
  /// One of the same grammar that knows no state but the first.
  std::shared_ptr<GrammarAutomaton> fresh() const;

  using State = uint32_t;
  static constexpr State kDead = 0;
  State start() const { return start_; }
  /// kDead where the byte cannot come. Throws exhausted where the grammar is so ambiguous that a step or a
  /// mask takes more than a million looks at stacks, some hundredth of a second, or nests so deeply that its
  /// states are full.
  State step(State from, std::string_view bytes);
  State step(State from, uint8_t byte) { return step(from, {reinterpret_cast<const char*>(&byte), 1}); }
  /// The text so far is a whole answer.
  bool is_complete(State state) const { return states_[state].is_complete; }
  /// The tokens that may come next, those of the end where the answer is whole; kept for many states.
  std::shared_ptr<const TokenMask> mask(State state, const TokenTrie& tokens);

  /// About what it holds.
  int64_t bytes() const { return bytes_.load(std::memory_order_relaxed); }
  /// It finds no more states.
  bool is_full() const { return is_full_.load(std::memory_order_relaxed); }
  /// Looks at stacks since the start.
  int64_t work() const { return work_; }

 private:
  struct Row {
    uint32_t first = 0, size = 0;  // in symbols
  };
  /// The grammar, flat.
  struct Rules {
    std::vector<Grammar::Symbol> symbols;
    std::vector<Row> rows;
    std::vector<std::pair<uint32_t, uint32_t>> rules;  // first row, rows
    std::vector<ByteSet> sets;
  };
  /// A stack: the place in a row that is to come next, on top of another stack. 0 is the empty one.
  struct Stack {
    uint32_t row = 0, place = 0, below = 0;
  };
  struct StateData {
    std::vector<uint32_t> stacks;  // each with bytes on top; ascending
    bool is_complete = false;
    std::optional<State> plain_next;  // where every plain byte leads; kDead: to several; nothing: not known
    std::vector<State> next;          // by byte, empty before the first step
  };
  static constexpr State kUnknown = UINT32_MAX;

  explicit GrammarAutomaton(std::shared_ptr<const Rules> rules);
  static std::shared_ptr<const Rules> flat(Grammar grammar);
  const Grammar::Symbol& top(const Stack& stack) const {
    return rules_->symbols[rules_->rows[stack.row].first + stack.place];
  }
  State next_of(State from, uint8_t byte);
  uint32_t stack_of(uint32_t row, uint32_t place, uint32_t below);
  void close(std::vector<uint32_t> open, StateData& state);
  State state_of(StateData state);
  State plain_next(State state);
  bool takes_plain(State state, uint32_t bytes);
  void fill(State state, const TokenTrie& tokens, uint32_t node, TokenMask& mask);
  void spend(int64_t looks);
  void grow(int64_t bytes);
  [[noreturn]] void fail_full(std::string_view of);

  const std::shared_ptr<const Rules> rules_;
  std::vector<Stack> stacks_{{}};
  std::vector<uint32_t> met_;  // by stack, the number of the closing that met it last
  uint32_t closings_ = 0;
  std::unordered_map<uint64_t, std::vector<uint32_t>> stack_ids_;
  std::vector<StateData> states_;
  std::unordered_map<uint64_t, std::vector<State>> state_ids_;
  std::unordered_map<State, std::shared_ptr<const TokenMask>> masks_;
  int64_t work_ = 0, work_end_ = 0;
  std::atomic<int64_t> bytes_{0};
  std::atomic<bool> is_full_{false};
  State start_ = 0;
};

/// One answer.
class GrammarMatcher {
 public:
  GrammarMatcher(std::shared_ptr<GrammarAutomaton> automaton, std::shared_ptr<const TokenTrie> tokens)
      : automaton_(std::move(automaton)), tokens_(std::move(tokens)), state_(automaton_->start()) {}

  /// Valid until the next accept(). Where the shared automaton is full, the answer goes on with one of its
  /// own; throws exhausted where that is full, too, or the answer has taken tens of millions of looks.
  const TokenMask& mask();
  /// Takes a token of the mask; false: it cannot come here. Throws what mask() throws.
  bool accept(int64_t token);
  /// Whether the text so far is a whole answer, and whether nothing may follow it.
  bool is_complete() const { return automaton_->is_complete(state_); }
  const GrammarAutomaton& automaton() const { return *automaton_; }

 private:
  template <class Use>
  auto use(const Use& act) -> decltype(act());

  std::shared_ptr<GrammarAutomaton> automaton_;
  std::shared_ptr<const TokenTrie> tokens_;
  GrammarAutomaton::State state_;
  std::shared_ptr<const TokenMask> mask_;
  std::string text_;  // so far
  int64_t work_ = 0;
};

}  // namespace trireme::data
