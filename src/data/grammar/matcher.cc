// Stacks and states of a grammar, each stored once; masks are computed by walking the trie of tokens.
#include "data/grammar/matcher.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace trireme::data {
namespace {

constexpr size_t kMostStacks = 1 << 20, kMostStates = 1 << 15, kMostOpen = 1 << 14;
/// Limits on the memory of one automaton, and on the work of one step or mask and of one answer.
constexpr int64_t kMostBytes = 64 << 20, kMostWork = 1 << 20, kMostAnswerWork = 32 << 20;
/// Longer tokens are never allowed, which bounds the depth of the recursive walk through the trie.
constexpr size_t kLongestToken = 256;
constexpr int64_t kMostMaskBytes = 16 << 20;

uint64_t mixed(uint64_t state, uint64_t value) {
  state = (state ^ value) * 0x9E3779B97F4A7C15u;
  return state ^ state >> 29;
}

}  // namespace

TokenTrie::TokenTrie(const Tokenizer& tokenizer, std::vector<int64_t> end)
    : nodes_(1), end_(std::move(end)), size_(tokenizer.vocabulary_size()) {
  // A model's configuration may name tokens that the tokenizer does not have.
  std::erase_if(end_, [&](int64_t id) { return id < 0 || id >= size_; });
  if (end_.empty())
    base::fail_unsupported("an answer of fixed form needs a token of the tokenizer that ends it");
  bytes_.resize(static_cast<size_t>(size_));
  std::vector<int32_t> order;
  for (int64_t id = 0; id < size_; ++id) {
    if (std::find(end_.begin(), end_.end(), id) != end_.end()) continue;
    std::string& bytes = bytes_[static_cast<size_t>(id)];
    bytes = tokenizer.token_bytes(id);
    if (bytes.size() > kLongestToken) bytes.clear();
    if (!bytes.empty()) order.push_back(static_cast<int32_t>(id));
  }
  const auto text = [&](int32_t id) -> const std::string& { return bytes_[static_cast<size_t>(id)]; };
  std::sort(order.begin(), order.end(),
            [&](int32_t a, int32_t b) { return text(a) != text(b) ? text(a) < text(b) : a < b; });
  // Built level by level: a node's children are then adjacent, as are its tokens in sorted order.
  struct Open {
    size_t begin, end, depth;
    uint32_t node;
  };
  tokens_ = order;
  std::vector<Open> level{{0, order.size(), 0, 0}}, next;
  while (!level.empty()) {
    next.clear();
    for (const Open& open : level) {
      size_t at = open.begin;
      nodes_[open.node].first_token = static_cast<uint32_t>(at);
      while (at < open.end && text(order[at]).size() == open.depth) ++at;
      nodes_[open.node].tokens = static_cast<uint32_t>(at - open.begin);
      nodes_[open.node].last_token = static_cast<uint32_t>(open.end);
      nodes_[open.node].first_child = static_cast<uint32_t>(nodes_.size());
      while (at < open.end) {
        const char byte = text(order[at])[open.depth];
        const size_t begin = at;
        while (at < open.end && text(order[at])[open.depth] == byte) ++at;
        ++nodes_[open.node].children;
        next.push_back({begin, at, open.depth + 1, static_cast<uint32_t>(nodes_.size())});
        nodes_.push_back({.byte = static_cast<uint8_t>(byte)});
      }
    }
    level.swap(next);
  }
  // Children come after their parents, so a backward pass visits them first.
  for (size_t i = nodes_.size(); i-- > 0;) {
    Node& node = nodes_[i];
    const auto first = nodes_.begin() + node.first_child;
    node.is_plain = std::all_of(first, first + node.children,
                                [](const Node& child) { return child.is_plain && is_plain(child.byte); });
    for (auto child = first; child != first + node.children; ++child)
      node.height = std::max<uint16_t>(node.height, static_cast<uint16_t>(child->height + 1));
  }
}

std::string_view TokenTrie::bytes_of(int64_t id) const {
  return id >= 0 && id < size_ ? std::string_view(bytes_[static_cast<size_t>(id)]) : std::string_view();
}

int64_t TokenTrie::bytes() const {
  return static_cast<int64_t>(nodes_.size() * sizeof(Node) + tokens_.size() * sizeof(int32_t) +
                              bytes_.size() * sizeof(std::string));
}

std::shared_ptr<const GrammarAutomaton::Rules> GrammarAutomaton::flat(Grammar grammar) {
  Rules flat{.sets = std::move(grammar.sets)};
  for (const Grammar::Rule& rule : grammar.rules) {
    flat.rules.emplace_back(static_cast<uint32_t>(flat.rows.size()), static_cast<uint32_t>(rule.rows.size()));
    for (const Grammar::Row& row : rule.rows) {
      flat.rows.push_back({static_cast<uint32_t>(flat.symbols.size()), static_cast<uint32_t>(row.size())});
      flat.symbols.insert(flat.symbols.end(), row.begin(), row.end());
    }
  }
  // An extra row with the root rule as its only symbol makes the start like any other place.
  flat.rows.push_back({static_cast<uint32_t>(flat.symbols.size()), 1});
  flat.symbols.push_back({true, grammar.root});
  return std::make_shared<const Rules>(std::move(flat));
}

GrammarAutomaton::GrammarAutomaton(Grammar grammar) : GrammarAutomaton(flat(std::move(grammar))) {}

GrammarAutomaton::GrammarAutomaton(std::shared_ptr<const Rules> rules) : rules_(std::move(rules)) {
  grow(static_cast<int64_t>(rules_->symbols.size() * sizeof(Grammar::Symbol) +
                            rules_->rows.size() * sizeof(Row) + rules_->sets.size() * sizeof(ByteSet)));
  states_.emplace_back();  // kDead
  work_end_ = kMostWork;
  StateData first;
  close({stack_of(static_cast<uint32_t>(rules_->rows.size() - 1), 0, 0)}, first);
  start_ = state_of(std::move(first));
}

std::shared_ptr<GrammarAutomaton> GrammarAutomaton::fresh() const {
  return std::shared_ptr<GrammarAutomaton>(new GrammarAutomaton(rules_));
}

void GrammarAutomaton::fail_full(std::string_view of) {
  is_full_.store(true, std::memory_order_relaxed);
  base::fail(base::ErrorCode::exhausted, "grammar: more ", of,
             " than there is room for: it nests too deeply");
}

void GrammarAutomaton::grow(int64_t bytes) {
  bytes_.store(bytes_.load(std::memory_order_relaxed) + bytes, std::memory_order_relaxed);
}

void GrammarAutomaton::spend(int64_t looks) {
  work_ += looks;
  if (work_ > work_end_)
    base::fail(base::ErrorCode::exhausted, "grammar: there are too many ways to read one text");
}

uint32_t GrammarAutomaton::stack_of(uint32_t row, uint32_t place, uint32_t below) {
  constexpr int64_t kStackBytes = sizeof(Stack) + 96;  // with its entry in stack_ids_
  // After the end of a row, only the stack below remains.
  if (place >= rules_->rows[row].size) return below;
  const uint64_t key = mixed(mixed(mixed(0, row), place), below);
  std::vector<uint32_t>& ids = stack_ids_[key];
  for (const uint32_t id : ids) {
    if (stacks_[id].row == row && stacks_[id].place == place && stacks_[id].below == below) return id;
  }
  if (stacks_.size() >= kMostStacks || bytes() > kMostBytes) fail_full("stacks");
  stacks_.push_back({row, place, below});
  ids.push_back(static_cast<uint32_t>(stacks_.size() - 1));
  grow(kStackBytes);
  return ids.back();
}

/// Expands rules until the top of every stack is a set of bytes.
void GrammarAutomaton::close(std::vector<uint32_t> open, StateData& state) {
  ++closings_;
  size_t met = 0;
  const auto is_new = [&](uint32_t stack) {
    if (met_.size() < stacks_.size()) met_.resize(2 * stacks_.size());
    return std::exchange(met_[stack], closings_) != closings_;
  };
  std::erase_if(open, [&](uint32_t stack) { return !is_new(stack); });
  const auto add = [&](uint32_t stack) {
    if (!is_new(stack)) return;
    if (++met > kMostOpen)
      base::fail(base::ErrorCode::exhausted, "grammar: more than ", kMostOpen, " ways to read one text");
    open.push_back(stack);
  };
  while (!open.empty()) {
    spend(1);
    const uint32_t id = open.back();
    open.pop_back();
    if (id == 0) {
      state.is_complete = true;
      continue;
    }
    const Stack stack = stacks_[id];
    const Grammar::Symbol& next = top(stack);
    if (!next.is_rule) {
      state.stacks.push_back(id);
      continue;
    }
    const uint32_t behind = stack_of(stack.row, stack.place + 1, stack.below);
    const auto [first, count] = rules_->rules[next.index];
    spend(count / 4);
    for (uint32_t row = first; row < first + count; ++row) add(stack_of(row, 0, behind));
  }
  std::sort(state.stacks.begin(), state.stacks.end());
}

GrammarAutomaton::State GrammarAutomaton::state_of(StateData state) {
  if (state.stacks.empty() && !state.is_complete) return kDead;
  uint64_t key = state.is_complete ? 1 : 2;
  for (const uint32_t stack : state.stacks) key = mixed(key, stack);
  std::vector<State>& ids = state_ids_[key];
  for (const State id : ids) {
    if (states_[id].is_complete == state.is_complete && states_[id].stacks == state.stacks) return id;
  }
  if (states_.size() >= kMostStates || bytes() > kMostBytes) fail_full("states");
  grow(static_cast<int64_t>(sizeof(StateData) + 96 + state.stacks.size() * sizeof(uint32_t)));
  states_.push_back(std::move(state));
  ids.push_back(static_cast<State>(states_.size() - 1));
  return ids.back();
}

GrammarAutomaton::State GrammarAutomaton::next_of(State from, uint8_t byte) {
  if (from == kDead) return kDead;
  if (states_[from].next.empty()) {
    states_[from].next.assign(256, kUnknown);
    grow(256 * sizeof(State));
  }
  if (const State known = states_[from].next[byte]; known != kUnknown) return known;
  std::vector<uint32_t> open;
  spend(static_cast<int64_t>(states_[from].stacks.size() / 8));
  for (const uint32_t id : states_[from].stacks) {
    const Stack stack = stacks_[id];
    if (rules_->sets[top(stack).index].test(byte))
      open.push_back(stack_of(stack.row, stack.place + 1, stack.below));
  }
  StateData to;
  close(std::move(open), to);
  const State found = state_of(std::move(to));
  states_[from].next[byte] = found;
  return found;
}

GrammarAutomaton::State GrammarAutomaton::step(State from, std::string_view bytes) {
  for (const char byte : bytes) {
    work_end_ = work_ + kMostWork;
    from = next_of(from, static_cast<uint8_t>(byte));
  }
  return from;
}

GrammarAutomaton::State GrammarAutomaton::plain_next(State state) {
  if (const std::optional<State> known = states_[state].plain_next) return *known;
  State next = next_of(state, ' ');
  for (int byte = 0; next != kDead && byte < 256; ++byte) {
    const auto b = static_cast<uint8_t>(byte);
    if (TokenTrie::is_plain(b) && next_of(state, b) != next) next = kDead;
  }
  states_[state].plain_next = next;
  return next;
}

/// Whether any `bytes` plain bytes may follow.
bool GrammarAutomaton::takes_plain(State state, uint32_t bytes) {
  for (uint32_t i = 0; i < bytes; ++i) {
    const State next = plain_next(state);
    if (next == kDead) return false;
    if (next == state) return true;
    state = next;
  }
  return true;
}

/// A depth-first recursion, which is shallow because tokens are short. Inside strings most tokens are plain
/// bytes; if any plain bytes may follow, takes_plain() allows a whole subtree of them at once.
void GrammarAutomaton::fill(State state, const TokenTrie& tokens, uint32_t node, TokenMask& mask) {
  const TokenTrie::Node& here = tokens.nodes()[node];
  const auto allow = [&](uint32_t first, uint32_t last) {
    for (uint32_t i = first; i < last; ++i) {
      const auto id = static_cast<size_t>(tokens.tokens()[i]);
      mask[id / 64] |= uint64_t{1} << id % 64;
    }
  };
  if (node != 0) allow(here.first_token, here.first_token + here.tokens);
  for (uint32_t child = here.first_child; child < here.first_child + here.children; ++child) {
    const TokenTrie::Node& below = tokens.nodes()[child];
    const State next = next_of(state, below.byte);
    if (next == kDead) continue;
    if (below.children > 0 && below.is_plain && takes_plain(next, below.height)) {
      allow(below.first_token, below.last_token);
    } else {
      fill(next, tokens, child, mask);
    }
  }
}

std::shared_ptr<const TokenMask> GrammarAutomaton::mask(State state, const TokenTrie& tokens) {
  if (const auto known = masks_.find(state); known != masks_.end()) return known->second;
  TokenMask mask((static_cast<size_t>(tokens.vocabulary_size()) + 63) / 64);
  const auto each = static_cast<int64_t>(mask.size() * sizeof(uint64_t)) + 128;
  if (static_cast<int64_t>(masks_.size() + 1) * each > kMostMaskBytes) {
    grow(-static_cast<int64_t>(masks_.size()) * each);
    masks_.clear();
  }
  work_end_ = work_ + kMostWork;
  fill(state, tokens, 0, mask);
  if (is_complete(state)) {
    for (const int64_t id : tokens.end()) mask[static_cast<size_t>(id) / 64] |= uint64_t{1} << id % 64;
  }
  grow(each);
  return masks_.emplace(state, std::make_shared<const TokenMask>(std::move(mask))).first->second;
}

/// Applies `act` to the automaton. If the shared automaton is full, repeats this once with a new one.
template <class Use>
auto GrammarMatcher::use(const Use& act) -> decltype(act()) {
  const auto counted = [&] {
    if (work_ > kMostAnswerWork)
      base::fail(base::ErrorCode::exhausted, "grammar: there are too many ways to read this answer");
    const int64_t before = automaton_->work();
    auto result = act();
    work_ += automaton_->work() - before;
    return result;
  };
  try {
    return counted();
  } catch (const base::Error&) {
    if (!automaton_->is_full()) throw;
  }
  automaton_ = automaton_->fresh();
  state_ = automaton_->step(automaton_->start(), text_);
  work_ += automaton_->work();
  return counted();
}

const TokenMask& GrammarMatcher::mask() {
  mask_ = use([&] { return automaton_->mask(state_, *tokens_); });
  return *mask_;
}

bool GrammarMatcher::accept(int64_t token) {
  const std::string_view bytes = tokens_->bytes_of(token);
  if (bytes.empty())
    return is_complete() && std::count(tokens_->end().begin(), tokens_->end().end(), token) > 0;
  const GrammarAutomaton::State next = use([&] { return automaton_->step(state_, bytes); });
  if (next == GrammarAutomaton::kDead) return false;
  state_ = next;
  text_ += bytes;
  return true;
}

}  // namespace trireme::data
