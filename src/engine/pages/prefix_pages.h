// Pages whose keys and values are those of a known beginning of a text, for sequences that begin so too.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <vector>

#include "engine/pages/kv_pool.h"
#include "engine/pages/page_names.h"

namespace trireme::engine {

/// Trees of full pages: a page's content follows from its tokens, those of the pages before it, and its
/// tree's root: an adapter gives the same tokens other keys and values. Holds each page once beside the
/// sequences that do; what only the tree holds is given up when pages are short, least recently used first.
/// Whoever holds a page holds those before it, so such pages can always be given up from the ends. What a
/// change costs does not depend on how many pages are known, but for the logarithm of their number. One owner
/// thread.
class PrefixPages : private KvPool::Watch {
 public:
  /// Who is told of a page that is given up while its content is still there, and what it is called.
  class Leaving {
   public:
    virtual ~Leaving() = default;
    virtual void gives_up(int32_t page, const PageId& id) = 0;
  };

  /// `pool` outlives it, and tells nobody else of its changes; so does `leaving`. Null: nobody is told.
  explicit PrefixPages(KvPool& pool, Leaving* leaving = nullptr)
      : pool_(pool), leaving_(leaving), by_page_(static_cast<size_t>(pool.pages()), nodes_.end()) {
    pool.watch(this);
  }
  ~PrefixPages() override;
  PrefixPages(const PrefixPages&) = delete;
  PrefixPages& operator=(const PrefixPages&) = delete;

  /// Pages for the longest known beginning of `tokens`, whole pages only; none of them is taken yet.
  const std::vector<int32_t>& find(std::span<const int64_t> tokens, const PageId& root = {});
  /// Remembers `pages`, which hold `tokens` from the beginning on and are full as far as tokens go. Where
  /// another page of the same beginning is known, that one stays, and what follows is not remembered. `ids`:
  /// what the pages are called; empty: nobody asks.
  void keep(std::span<const int64_t> tokens, std::span<const int32_t> pages, const PageId& root = {},
            std::span<const PageId> ids = {});
  /// Gives up to `count` pages back to the pool; returns how many.
  int64_t give_up(int64_t count);
  /// How many could be given up.
  int64_t spare() const { return spare_; }
  int64_t pages() const { return static_cast<int64_t>(nodes_.size()); }

 private:
  /// The place in the tree: the page before, or below 0 and the tree's root; and this page's tokens.
  struct Key {
    int32_t before;
    PageId root;
    std::vector<int64_t> tokens;
    auto operator<=>(const Key&) const = default;
  };
  struct Node {
    int32_t page = -1;
    int64_t behind = 0;  ///< known pages that follow this one
    uint64_t last_used = 0;
    bool is_spare = false;   ///< nobody else holds the page
    uint64_t end_since = 0;  ///< its key in `ends_`; 0: it is not there
    PageId id{};
  };
  using Nodes = std::map<Key, Node>;
  Key key(int32_t before, const PageId& root, std::span<const int64_t> tokens, size_t index) const;
  Nodes::iterator& node_of(int32_t page) { return by_page_[static_cast<size_t>(page)]; }
  void holders_changed(int32_t page) override;
  void settle(Node& node);

  KvPool& pool_;
  Leaving* const leaving_;
  Nodes nodes_;
  std::vector<Nodes::iterator> by_page_;  ///< the end of nodes_: the page is not known
  /// What can be given up next, the least recently used first: pages that nobody else holds and none follows.
  std::set<std::pair<uint64_t, int32_t>> ends_;
  int64_t spare_ = 0;
  std::vector<int32_t> found_;
  uint64_t clock_ = 0;
};

}  // namespace trireme::engine
