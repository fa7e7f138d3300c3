// Pages whose keys and values are those of a known beginning of a text.
#include "engine/decode/prefix_pages.h"

#include <algorithm>

namespace trireme::engine {

PrefixPages::~PrefixPages() {
  for (const auto& [key, node] : nodes_) pool_.release(node.page);
}

PrefixPages::Key PrefixPages::key(int32_t before, std::span<const int64_t> tokens, size_t index) const {
  const auto n = static_cast<size_t>(pool_.layout().page_tokens);
  const auto own = tokens.subspan(index * n, n);
  return {before, {own.begin(), own.end()}};
}

const std::vector<int32_t>& PrefixPages::find(std::span<const int64_t> tokens) {
  found_.clear();
  const size_t full = tokens.size() / static_cast<size_t>(pool_.layout().page_tokens);
  ++clock_;
  for (int32_t before = -1; found_.size() < full; before = found_.back()) {
    const auto at = nodes_.find(key(before, tokens, found_.size()));
    if (at == nodes_.end()) break;
    at->second.last_used = clock_;
    found_.push_back(at->second.page);
  }
  return found_;
}

void PrefixPages::keep(std::span<const int64_t> tokens, std::span<const int32_t> pages) {
  const size_t full = std::min(tokens.size() / static_cast<size_t>(pool_.layout().page_tokens), pages.size());
  ++clock_;
  int32_t before = -1;
  for (size_t i = 0; i < full; ++i) {
    const auto [at, is_new] = nodes_.try_emplace(key(before, tokens, i));
    Node& node = at->second;
    node.last_used = clock_;
    if (is_new) {
      node.page = pages[i];
      pool_.share(node.page);
      by_page_[node.page] = at;
      if (before >= 0) ++by_page_.at(before)->second.behind;
    }
    if (node.page != pages[i]) return;
    before = node.page;
  }
}

int64_t PrefixPages::give_up(int64_t count) {
  int64_t given = 0;
  for (; given < count; ++given) {
    auto oldest = nodes_.end();
    for (auto at = nodes_.begin(); at != nodes_.end(); ++at) {
      const Node& node = at->second;
      if (node.behind > 0 || pool_.holders(node.page) > 1) continue;
      if (oldest == nodes_.end() || node.last_used < oldest->second.last_used) oldest = at;
    }
    if (oldest == nodes_.end()) break;
    const int32_t page = oldest->second.page, before = oldest->first.before;
    if (before >= 0) --by_page_.at(before)->second.behind;
    by_page_.erase(page);
    nodes_.erase(oldest);
    pool_.release(page);
  }
  return given;
}

int64_t PrefixPages::spare() const {
  return std::count_if(nodes_.begin(), nodes_.end(),
                       [&](const auto& entry) { return pool_.holders(entry.second.page) == 1; });
}

}  // namespace trireme::engine
