// Drafts by looking back: what followed when the text's last tokens occurred in it before.
#pragma once

#include <unordered_map>
#include <vector>

#include "engine/decode/drafter.h"

namespace trireme::engine {

/// Where the end of a growing text occurred in it before: chains of the places that end in the same few
/// tokens, as in LZ77. A token is taken in and looked up in bounded time, however long the text is.
class RepeatIndex {
 public:
  /// So many tokens at least must be the same, 1 or more.
  explicit RepeatIndex(int64_t least) : least_(static_cast<size_t>(least)) {}

  /// Takes in tokens of `text` behind those that are known, which it still begins with: at most `most` of
  /// them.
  void extend(std::span<const int64_t> text, size_t most);
  /// How many tokens were taken in.
  size_t size() const { return before_.size(); }
  /// The last token of the earlier place whose tokens up to there are most like the end of `text`, all of
  /// which was taken in; among alike ones the latest. -1: there is none.
  int64_t find(std::span<const int64_t> text) const;

 private:
  size_t least_;
  std::vector<int32_t> before_;                 // of each token: the last place before that ends alike, or -1
  std::unordered_map<uint64_t, int32_t> last_;  // by the hash of the last `least_` tokens
};

/// Prompt lookup (Saxena 2023): texts that quote their prompt or themselves, as code, edits and summaries do,
/// are guessed well. Holds some 60 bytes for each token of the texts under way.
class PromptLookup final : public Drafter {
 public:
  /// Drafts follow where at least so many of the last tokens occurred before.
  explicit PromptLookup(int64_t least);

  void draft(std::span<const DraftWish> wishes) override;
  void forget(int64_t text) override { texts_.erase(text); }
  bool runs_steps() const override { return false; }
  int64_t memory_bytes() const override { return 0; }

 private:
  int64_t least_;
  std::unordered_map<int64_t, RepeatIndex> texts_;
};

}  // namespace trireme::engine
