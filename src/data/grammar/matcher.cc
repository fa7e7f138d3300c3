// Stacks and states of a grammar, each found once; masks by a walk through the trie of tokens.
#include "data/grammar/matcher.h"

#include <algorithm>

#include "base/error.h"

namespace trireme::data {
namespace {

constexpr size_t kMostStacks = 1 << 20, kMostStates = 1 << 15, kMostOpen = 1 << 14, kMostHeld = 1 << 22;
/// Longer tokens are in no answer: the walk through the trie is a recursion.
constexpr size_t kLongestToken = 256;
constexpr size_t kMostMasks = 4096;

uint64_t mixed(uint64_t state, uint64_t value) {
  state = (state ^ value) * 0x9E3779B97F4A7C15u;
  return state ^ state >> 29;
}

}  // namespace

TokenTrie::TokenTrie(const Tokenizer& tokenizer, std::vector<int64_t> end)
    : nodes_(1), end_(std::move(end)), size_(tokenizer.vocabulary_size()) {
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
  // Level by level: the children of a node are one run, as its tokens are one run of the sorted ones.
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
}

std::string_view TokenTrie::bytes_of(int64_t id) const {
  return id >= 0 && id < size_ ? std::string_view(bytes_[static_cast<size_t>(id)]) : std::string_view();
}

GrammarAutomaton::GrammarAutomaton(Grammar grammar) : sets_(std::move(grammar.sets)) {
  for (const Grammar::Rule& rule : grammar.rules) {
    rules_.emplace_back(static_cast<uint32_t>(rows_.size()), static_cast<uint32_t>(rule.rows.size()));
    for (const Grammar::Row& row : rule.rows) {
      rows_.push_back({static_cast<uint32_t>(symbols_.size()), static_cast<uint32_t>(row.size())});
      symbols_.insert(symbols_.end(), row.begin(), row.end());
    }
  }
  // A row of one symbol that is the root, so that beginning is like any other place.
  rows_.push_back({static_cast<uint32_t>(symbols_.size()), 1});
  symbols_.push_back({true, grammar.root});
  states_.emplace_back();  // kDead
  StateData first;
  close({stack_of(static_cast<uint32_t>(rows_.size() - 1), 0, 0)}, first);
  start_ = state_of(std::move(first));
}

uint32_t GrammarAutomaton::stack_of(uint32_t row, uint32_t place, uint32_t below) {
  // Behind the end of a row nothing is left of it.
  if (place >= rows_[row].size) return below;
  const uint64_t key = mixed(mixed(mixed(0, row), place), below);
  std::vector<uint32_t>& ids = stack_ids_[key];
  for (const uint32_t id : ids) {
    if (stacks_[id].row == row && stacks_[id].place == place && stacks_[id].below == below) return id;
  }
  if (stacks_.size() >= kMostStacks)
    base::fail(base::ErrorCode::exhausted, "grammar: more than ", kMostStacks,
               " stacks: it nests too deeply");
  stacks_.push_back({row, place, below});
  ids.push_back(static_cast<uint32_t>(stacks_.size() - 1));
  return ids.back();
}

/// Expands rules until every stack has bytes on top.
void GrammarAutomaton::close(std::vector<uint32_t> open, StateData& state) {
  std::vector<uint32_t> seen = open;
  std::sort(seen.begin(), seen.end());
  seen.erase(std::unique(seen.begin(), seen.end()), seen.end());
  open = seen;
  const auto add = [&](uint32_t stack) {
    const auto at = std::lower_bound(seen.begin(), seen.end(), stack);
    if (at != seen.end() && *at == stack) return;
    if (seen.size() >= kMostOpen)
      base::fail(base::ErrorCode::exhausted, "grammar: more than ", kMostOpen, " ways to read one text");
    seen.insert(at, stack);
    open.push_back(stack);
  };
  while (!open.empty()) {
    const uint32_t id = open.back();
    open.pop_back();
    if (id == 0) {
      state.is_complete = true;
      continue;
    }
    const Stack stack = stacks_[id];
    const Grammar::Symbol& top = symbols_[rows_[stack.row].first + stack.place];
    if (!top.is_rule) {
      state.stacks.push_back(id);
      continue;
    }
    const uint32_t behind = stack_of(stack.row, stack.place + 1, stack.below);
    const auto [first, count] = rules_[top.index];
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
  held_ += state.stacks.size();
  if (states_.size() >= kMostStates || held_ > kMostHeld)
    base::fail(base::ErrorCode::exhausted, "grammar: more than ", kMostStates, " states");
  states_.push_back(std::move(state));
  ids.push_back(static_cast<State>(states_.size() - 1));
  return ids.back();
}

GrammarAutomaton::State GrammarAutomaton::step(State from, uint8_t byte) {
  if (from == kDead) return kDead;
  if (states_[from].next.empty()) states_[from].next.assign(256, kUnknown);
  if (const State known = states_[from].next[byte]; known != kUnknown) return known;
  std::vector<uint32_t> open;
  for (const uint32_t id : states_[from].stacks) {
    const Stack stack = stacks_[id];
    if (sets_[symbols_[rows_[stack.row].first + stack.place].index].test(byte))
      open.push_back(stack_of(stack.row, stack.place + 1, stack.below));
  }
  StateData to;
  close(std::move(open), to);
  const State found = state_of(std::move(to));
  states_[from].next[byte] = found;
  return found;
}

GrammarAutomaton::State GrammarAutomaton::step(State from, std::string_view bytes) {
  for (const char byte : bytes) from = step(from, static_cast<uint8_t>(byte));
  return from;
}

/// Depth first; tokens are short, so the recursion is.
void GrammarAutomaton::fill(State state, const TokenTrie& tokens, uint32_t node, TokenMask& mask) {
  const TokenTrie::Node& here = tokens.nodes()[node];
  for (uint32_t i = here.first_token; node != 0 && i < here.first_token + here.tokens; ++i) {
    const auto id = static_cast<size_t>(tokens.tokens()[i]);
    mask[id / 64] |= uint64_t{1} << id % 64;
  }
  for (uint32_t child = here.first_child; child < here.first_child + here.children; ++child) {
    const State next = step(state, tokens.nodes()[child].byte);
    if (next != kDead) fill(next, tokens, child, mask);
  }
}

const TokenMask& GrammarAutomaton::mask(State state, const TokenTrie& tokens) {
  if (const auto known = masks_.find(state); known != masks_.end()) return known->second;
  if (masks_.size() >= kMostMasks) masks_.clear();
  TokenMask mask((static_cast<size_t>(tokens.vocabulary_size()) + 63) / 64);
  fill(state, tokens, 0, mask);
  if (is_complete(state)) {
    for (const int64_t id : tokens.end()) mask[static_cast<size_t>(id) / 64] |= uint64_t{1} << id % 64;
  }
  return masks_.emplace(state, std::move(mask)).first->second;
}

bool GrammarMatcher::accept(int64_t token) {
  const std::string_view bytes = tokens_->bytes_of(token);
  if (bytes.empty())
    return is_complete() && std::count(tokens_->end().begin(), tokens_->end().end(), token) > 0;
  const GrammarAutomaton::State next = automaton_->step(state_, bytes);
  if (next == GrammarAutomaton::kDead) return false;
  state_ = next;
  return true;
}

}  // namespace trireme::data
