// Pages with the keys and values of known beginnings of texts.
#include "engine/pages/prefix_pages.h"

#include <algorithm>
#include <utility>

namespace trireme::engine {

PrefixPages::~PrefixPages() {
  pool_.watch(nullptr);
  for (const auto& [key, node] : nodes_) pool_.release(node.page);
}

void PrefixPages::holders_changed(int32_t page) {
  if (node_of(page) != nodes_.end()) settle(node_of(page)->second);
}

/// Updates the node's counts after a change of its holders, its successors or its last use.
void PrefixPages::settle(Node& node) {
  const bool is_spare = pool_.holders(node.page) == 1;
  spare_ += static_cast<int>(is_spare) - static_cast<int>(std::exchange(node.is_spare, is_spare));
  const uint64_t since = is_spare && node.behind == 0 ? node.last_used : 0;
  if (since == node.end_since) return;
  if (node.end_since != 0) ends_.erase({node.end_since, node.page});
  if (since != 0) ends_.emplace(since, node.page);
  node.end_since = since;
}

PrefixPages::Key PrefixPages::key(int32_t before, const PageId& root, std::span<const int64_t> tokens,
                                  size_t index) const {
  const auto n = static_cast<size_t>(pool_.layout().page_tokens);
  const auto own = tokens.subspan(index * n, n);
  return {before, before < 0 ? root : PageId{}, {own.begin(), own.end()}};
}

const std::vector<int32_t>& PrefixPages::find(std::span<const int64_t> tokens, const PageId& root) {
  found_.clear();
  const size_t full = tokens.size() / static_cast<size_t>(pool_.layout().page_tokens);
  ++clock_;
  for (int32_t before = -1; found_.size() < full; before = found_.back()) {
    const auto at = nodes_.find(key(before, root, tokens, found_.size()));
    if (at == nodes_.end()) break;
    at->second.last_used = clock_;
    settle(at->second);
    found_.push_back(at->second.page);
  }
  return found_;
}

void PrefixPages::keep(std::span<const int64_t> tokens, std::span<const int32_t> pages, const PageId& root,
                       std::span<const PageId> ids) {
  const size_t full = std::min(tokens.size() / static_cast<size_t>(pool_.layout().page_tokens), pages.size());
  ++clock_;
  int32_t before = -1;
  for (size_t i = 0; i < full; ++i) {
    const auto [at, is_new] = nodes_.try_emplace(key(before, root, tokens, i));
    Node& node = at->second;
    node.last_used = clock_;
    if (is_new) {
      node.page = pages[i];
      if (i < ids.size()) node.id = ids[i];
      pool_.share(node.page);
      node_of(node.page) = at;
      if (before >= 0) {
        Node& last = node_of(before)->second;
        ++last.behind;
        settle(last);
      }
    }
    settle(node);
    if (node.page != pages[i]) return;
    before = node.page;
  }
}

int64_t PrefixPages::give_up(int64_t count) {
  int64_t given = 0;
  for (; given < count && !ends_.empty(); ++given) {
    const int32_t page = ends_.begin()->second;
    const Nodes::iterator oldest = std::exchange(node_of(page), nodes_.end());
    const int32_t before = oldest->first.before;
    if (leaving_ != nullptr) leaving_->gives_up(page, oldest->second.id);
    ends_.erase(ends_.begin());
    --spare_;
    nodes_.erase(oldest);
    pool_.release(page);
    if (before < 0) continue;
    Node& last = node_of(before)->second;
    --last.behind;
    settle(last);
  }
  return given;
}

}  // namespace trireme::engine
