// Drafts tokens by looking up earlier occurrences of the last tokens in the text (prompt lookup).
#include "engine/decode/prompt_lookup.h"

#include <algorithm>

#include "base/error.h"

namespace trireme::engine {
namespace {

/// The most occurrences that are compared for one draft, and the most tokens compared at each.
constexpr int kMostPlaces = 16;
constexpr size_t kMostAlike = 64;
/// The most tokens of a long prompt that are indexed in one step, which takes some tenths of a millisecond.
constexpr size_t kMostTaken = 4096;

uint64_t hash_of(std::span<const int64_t> tokens) {
  uint64_t hash = 0x9e3779b97f4a7c15;
  for (const int64_t token : tokens) {
    hash = (hash ^ static_cast<uint64_t>(token)) * 0xff51afd7ed558ccd;
    hash ^= hash >> 32;
  }
  return hash;
}

}  // namespace

void RepeatIndex::extend(std::span<const int64_t> text, size_t most) {
  base::check(text.size() >= size() && text.size() <= INT32_MAX, "a text of ", text.size(), " tokens, ",
              size(), " of them known");
  for (const size_t end = std::min(text.size(), size() + most); size() < end;) {
    const size_t at = size();
    if (at + 1 < least_) {
      before_.push_back(-1);
      continue;
    }
    const auto [last, is_new] =
        last_.try_emplace(hash_of(text.subspan(at + 1 - least_, least_)), static_cast<int32_t>(at));
    before_.push_back(is_new ? -1 : last->second);
    last->second = static_cast<int32_t>(at);
  }
}

int64_t RepeatIndex::find(std::span<const int64_t> text) const {
  base::check(text.size() == size(), "a text of ", text.size(), " tokens, ", size(), " of them known");
  int64_t best = -1;
  size_t longest = least_ - 1;  // occurrences with equal hashes but other tokens do not match
  const size_t last = size() - 1;
  int32_t place = before_.empty() ? -1 : before_[last];
  for (int looked = 0; place >= 0 && looked < kMostPlaces; ++looked) {
    const auto at = static_cast<size_t>(place);
    const size_t most = std::min(at + 1, kMostAlike);
    size_t alike = 0;
    while (alike < most && text[at - alike] == text[last - alike]) ++alike;
    if (alike > longest) {
      longest = alike;
      best = place;
    }
    if (alike == kMostAlike) break;
    place = before_[at];
  }
  return best;
}

PromptLookup::PromptLookup(int64_t least) : least_(least) {
  base::require(least > 0, "drafts that follow ", least, " known tokens");
}

void PromptLookup::draft(std::span<const DraftWish> wishes) {
  for (const DraftWish& wish : wishes) {
    RepeatIndex& index = texts_.try_emplace(wish.text, least_).first->second;
    index.extend(wish.tokens, kMostTaken);
    if (index.size() < wish.tokens.size()) continue;  // the rest of a long prompt is indexed in later steps
    const int64_t place = index.find(wish.tokens);
    if (place < 0) continue;
    // If the period of the repetition is shorter than the draft, the draft repeats it.
    const auto size = static_cast<int64_t>(wish.tokens.size()), period = size - 1 - place;
    for (int64_t i = 0; i < wish.most; ++i)
      wish.drafts->push_back(wish.tokens[static_cast<size_t>(place + 1 + i % period)]);
  }
}

}  // namespace trireme::engine
