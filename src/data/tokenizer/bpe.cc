// Byte pair encoding (Sennrich, Haddow & Birch 2016): merges in the order of rank, over flat tables.
#include "data/tokenizer/bpe.h"

#include <algorithm>
#include <bit>
#include <queue>

#include "base/error.h"
#include "base/utf8.h"
#include "data/tokenizer/characters.h"
#include "data/tokenizer/normalizer.h"

namespace trireme::data {
namespace {

constexpr int32_t kNone = Vocabulary::kNone;
/// Up to this many symbols, a search through all pairs is faster than a queue.
constexpr size_t kFewSymbols = 32;

uint64_t pair_of(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

}  // namespace

std::vector<BpeMerge> merges_by_text(const Vocabulary& vocabulary,
                                     const std::vector<std::pair<std::string, std::string>>& merges,
                                     const std::string& prefix) {
  std::vector<BpeMerge> out;
  out.reserve(merges.size());
  for (const auto& [left, right] : merges) {
    const bool continues = !prefix.empty() && right.starts_with(prefix);
    const std::string both = left + (continues ? right.substr(prefix.size()) : right);
    const BpeMerge merge{vocabulary.find(left), vocabulary.find(right), vocabulary.find(both),
                         static_cast<int32_t>(out.size())};
    base::require(merge.left != kNone && merge.right != kNone && merge.id != kNone, "merge of '", left,
                  "' and '", right, "', which are not in the vocabulary");
    out.push_back(merge);
  }
  return out;
}

std::vector<BpeMerge> merges_by_rank(const Vocabulary& vocabulary, const std::vector<int32_t>& ranks) {
  constexpr size_t kLongest = 1024;  // bytes of a token, so that the work stays proportional to the file
  std::vector<BpeMerge> out;
  for (size_t id = 0; id < vocabulary.size(); ++id) {
    const std::string_view text = vocabulary[id];
    if (ranks[id] < 0) continue;
    base::require(text.size() <= kLongest, "token ", id, " has ", text.size(), " bytes; at most ", kLongest);
    for (size_t cut = 1; cut < text.size(); ++cut) {
      const int32_t left = vocabulary.find(text.substr(0, cut));
      if (left == kNone) continue;
      const int32_t right = vocabulary.find(text.substr(cut));
      if (right == kNone) continue;
      out.push_back({left, right, static_cast<int32_t>(id), ranks[id]});
    }
  }
  return out;
}

BpeModel::BpeModel(Vocabulary vocabulary, const std::vector<BpeMerge>& merges, BpeRules rules)
    : vocabulary_(std::move(vocabulary)), rules_(std::move(rules)), is_whole_(vocabulary_.size()) {
  slots_.resize(std::bit_ceil(2 * merges.size() + 2));
  for (const BpeMerge& merge : merges) insert(merge);
  has_words_ = !rules_.byte_level && rules_.prefix.empty() && rules_.suffix.empty() &&
               vocabulary_.find(kSpaceMark) != kNone && !joins_words(merges);
  for (size_t byte = 0; byte < 256; ++byte) {
    const char raw = static_cast<char>(byte);
    byte_ids_[byte] = vocabulary_.find(rules_.byte_level ? std::string_view(&raw, 1)
                                                         : name_of_byte(static_cast<uint8_t>(byte)));
  }
}

/// True if some merge joins the end of one word with the beginning of the next.
bool BpeModel::joins_words(const std::vector<BpeMerge>& merges) const {
  return std::any_of(merges.begin(), merges.end(), [&](const BpeMerge& merge) {
    return vocabulary_[static_cast<size_t>(merge.right)].starts_with(kSpaceMark) &&
           !vocabulary_[static_cast<size_t>(merge.left)].ends_with(kSpaceMark);
  });
}

void BpeModel::insert(const BpeMerge& merge) {
  const uint64_t pair = pair_of(merge.left, merge.right);
  size_t at = (pair * 0x9E3779B97F4A7C15u) >> 32 & (slots_.size() - 1);
  while (slots_[at].pair != UINT64_MAX && slots_[at].pair != pair) at = (at + 1) & (slots_.size() - 1);
  // If a merge is listed twice, the last one counts, as in the tokenizers package.
  slots_[at] = {pair, merge.rank, merge.id};
}

const BpeModel::Slot* BpeModel::find(int32_t left, int32_t right) const {
  const uint64_t pair = pair_of(left, right);
  size_t at = (pair * 0x9E3779B97F4A7C15u) >> 32 & (slots_.size() - 1);
  while (slots_[at].pair != pair) {
    if (slots_[at].pair == UINT64_MAX) return nullptr;
    at = (at + 1) & (slots_.size() - 1);
  }
  return &slots_[at];
}

void BpeModel::append_unknown(std::vector<int32_t>& symbols) const {
  const int32_t unknown = rules_.unknown;
  if (unknown == kNone || (rules_.fuses_unknown && !symbols.empty() && symbols.back() == unknown)) return;
  symbols.push_back(unknown);
}

/// Appends one character of a piece, in the vocabulary's spelling for its position.
void BpeModel::append_character(std::string_view piece, size_t begin, size_t end,
                                std::vector<int32_t>& symbols) const {
  std::string_view character = piece.substr(begin, end - begin);
  std::string text;
  if (!rules_.prefix.empty() || !rules_.suffix.empty()) {
    if (begin > 0) text = rules_.prefix;
    text += character;
    if (end == piece.size()) text += rules_.suffix;
    character = text;
  }
  const int32_t id = vocabulary_.find(character);
  if (id != kNone) return symbols.push_back(id);
  const auto has_byte = [&](char c) { return byte_ids_[static_cast<uint8_t>(c)] != kNone; };
  if (!rules_.byte_fallback || !std::all_of(character.begin(), character.end(), has_byte))
    return append_unknown(symbols);
  for (const char c : character) symbols.push_back(byte_ids_[static_cast<uint8_t>(c)]);
}

void BpeModel::append_symbols(std::string_view piece, std::vector<int32_t>& symbols) const {
  if (rules_.byte_level && rules_.suffix.empty() && rules_.prefix.empty()) {
    for (const char c : piece) {
      const int32_t id = byte_ids_[static_cast<uint8_t>(c)];
      id == kNone ? append_unknown(symbols) : symbols.push_back(id);
    }
    return;
  }
  for (size_t begin = 0, end = 0; begin < piece.size(); begin = end) {
    if (rules_.byte_level)
      end = begin + 1;
    else
      base::next_code_point(piece, end);
    append_character(piece, begin, end, symbols);
  }
}

/// Merges neighbours: always the pair of the lowest rank, the leftmost among equals.
void BpeModel::merge_few(std::vector<int32_t>& symbols) const {
  const Slot* pairs[kFewSymbols];
  size_t n = symbols.size();
  const auto look = [&](size_t i) { pairs[i] = i + 1 < n ? find(symbols[i], symbols[i + 1]) : nullptr; };
  for (size_t i = 0; i < n; ++i) look(i);
  for (;;) {
    size_t best = n;
    for (size_t i = 0; i + 1 < n; ++i) {
      if (pairs[i] != nullptr && (best == n || pairs[i]->rank < pairs[best]->rank)) best = i;
    }
    if (best == n) break;
    symbols[best] = pairs[best]->id;
    --n;
    for (size_t i = best + 1; i < n; ++i) {
      symbols[i] = symbols[i + 1];
      pairs[i] = pairs[i + 1];
    }
    look(best);
    if (best > 0) look(best - 1);
  }
  symbols.resize(n);
}

void BpeModel::merge_many(std::vector<int32_t>& symbols) const {
  struct Candidate {
    int32_t rank, at, left, right, id;
    bool operator>(const Candidate& o) const { return rank != o.rank ? rank > o.rank : at > o.at; }
  };
  const auto n = static_cast<int32_t>(symbols.size());
  std::vector<int32_t> next(symbols.size()), previous(symbols.size());
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue;
  const auto offer = [&](int32_t a, int32_t b) {
    if (a < 0 || b >= n) return;
    const int32_t left = symbols[static_cast<size_t>(a)], right = symbols[static_cast<size_t>(b)];
    if (const Slot* found = find(left, right)) queue.push({found->rank, a, left, right, found->id});
  };
  for (int32_t i = 0; i < n; ++i) {
    next[static_cast<size_t>(i)] = i + 1;
    previous[static_cast<size_t>(i)] = i - 1;
    offer(i, i + 1);
  }
  while (!queue.empty()) {
    const Candidate c = queue.top();
    queue.pop();
    const auto a = static_cast<size_t>(c.at);
    const int32_t b = next[a];
    // One of the two may have been merged since the pair was queued.
    if (symbols[a] != c.left || b >= n || symbols[static_cast<size_t>(b)] != c.right) continue;
    symbols[a] = c.id;
    symbols[static_cast<size_t>(b)] = kNone;
    next[a] = next[static_cast<size_t>(b)];
    if (next[a] < n) previous[static_cast<size_t>(next[a])] = c.at;
    offer(previous[a], c.at);
    offer(c.at, next[a]);
  }
  std::erase(symbols, kNone);
}

void BpeModel::append(std::string_view piece, std::vector<int64_t>& ids) const {
  if (!has_words_ || rules_.ignores_merges) return append_word(piece, ids);
  size_t begin = 0;
  for (size_t at = piece.find(kSpaceMark, 1); at != std::string_view::npos;
       at = piece.find(kSpaceMark, at + 1)) {
    if (piece.substr(begin, at - begin).ends_with(kSpaceMark)) continue;
    append_word(piece.substr(begin, at - begin), ids);
    begin = at;
  }
  append_word(piece.substr(begin), ids);
}

void BpeModel::append_word(std::string_view piece, std::vector<int64_t>& ids) const {
  int32_t whole = kNone;
  if (rules_.ignores_merges || (rules_.suffix.empty() && rules_.prefix.empty())) {
    whole = vocabulary_.find(piece);
    if (whole != kNone &&
        (rules_.ignores_merges || is_whole_[static_cast<size_t>(whole)].load(std::memory_order_relaxed) == 1))
      return ids.push_back(whole);
  }
  std::vector<int32_t> symbols;
  symbols.reserve(piece.size());
  append_symbols(piece, symbols);
  symbols.size() <= kFewSymbols ? merge_few(symbols) : merge_many(symbols);
  // The result depends on the text only, so threads that compute it at the same time agree.
  if (whole != kNone) {
    const bool is_one = symbols.size() == 1 && symbols[0] == whole;
    is_whole_[static_cast<size_t>(whole)].store(is_one ? 1 : 2, std::memory_order_relaxed);
  }
  ids.insert(ids.end(), symbols.begin(), symbols.end());
}

}  // namespace trireme::data
