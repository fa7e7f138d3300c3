// Beginnings of texts whose pages need not be computed: those that a session remembers, and those that come
// back from a store.
#pragma once

#include <chrono>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "engine/decode/decode_ranks.h"
#include "engine/pages/prefix_pages.h"
#include "engine/pages/handed_pages.h"

namespace trireme::ir {
class Graph;
}

namespace trireme::engine {

/// What a text's keys and values follow from besides its tokens, and with whom it shares them. What the
/// pointer leads to is the caller's.
struct TextOrigin {
  TextOrigin(const LoadedAdapter* runs = nullptr, std::string_view kept_apart = {})
      : adapter(runs), salt(kept_apart) {}
  const LoadedAdapter* adapter;  ///< null: the model alone
  std::string_view salt;         ///< only texts of the same one share beginnings
};

/// What tells the pages of a model, run with these options on this machine by this program, from all whose
/// bits may be others. Reads all weights.
PageId page_model(const ir::Graph& graph, const DecodeOptions& options);

/// One owner thread.
class KnownBeginnings final : private PrefixPages::Leaving {
 public:
  /// `options.store` may be null: then nothing is kept of what is given up. The ranks outlive it.
  KnownBeginnings(const DecodeOptions& options, DecodeRanks& ranks);

  /// What stands before the first page of a text.
  PageId root(const TextOrigin& origin) const;
  /// Known pages of the prompt's beginning, but for its last token, whose logits are wanted. None is taken.
  std::span<const int32_t> find(std::span<const int64_t> prompt, const PageId& root);
  /// Appends those pages, and behind them what was loaded, and holds them for the caller.
  void take(std::span<const int64_t> prompt, const PageId& root, std::vector<int32_t>& pages);
  /// Remembers the full pages of `tokens`. A store that takes pages at once is given those that it has not.
  void keep(std::span<const int64_t> tokens, std::span<const int32_t> pages, const PageId& root);
  /// Pages that are free, or only remembered.
  int64_t free_pages() const { return ranks_.first().pool().free_pages() + prefixes_.spare(); }
  /// A page for the caller; what is remembered goes for it. Throws exhausted.
  int32_t take_page();

  /// Begins to load what the store has of the prompt's beginning beyond what is known; take() finds it then.
  /// False: it is on its way. `number` tells prompts apart; only what was asked for last is on its way, and
  /// what takes too long is given up.
  bool fetch(int64_t number, std::span<const int64_t> prompt, const TextOrigin& origin);
  /// Waits for that, but only for a moment.
  void wait();

  /// How many pages of the prompt's beginning take() would find here or in the store.
  int64_t reach(std::span<const int64_t> prompt, const TextOrigin& origin);
  /// Has the next take() go on behind those with pages that another session computed; null: there are none.
  void offer(std::shared_ptr<const HandedPages> handed) {
    offered_ = std::move(handed);
    accepted_ = 0;
  }
  /// How many of them were taken.
  int64_t accepted() const { return accepted_; }

 private:
  void gives_up(int32_t page, const PageId& id) override;
  void save(int32_t page, const PageId& id);
  std::vector<int32_t> restore(std::span<const PageId> ids);
  std::vector<int32_t> accept(const HandedPages& handed, int64_t known, int64_t most);

  const std::shared_ptr<PageStore> store_;
  const PageNames names_;
  const bool is_on_;
  const int64_t page_tokens_;
  DecodeRanks& ranks_;
  PrefixPages prefixes_;
  struct {
    int64_t number = -1;
    std::shared_ptr<PageLoad> load;
    std::chrono::steady_clock::time_point late{};
  } fetch_;
  std::shared_ptr<const HandedPages> offered_;
  int64_t accepted_ = 0;
};

}  // namespace trireme::engine
