// What pages of keys and values are called outside of a session's memory: by what their content follows from.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/keyed_hash.h"

namespace trireme::engine {

using PageId = std::array<uint64_t, 2>;
/// 32 hexadecimal digits.
std::string to_text(const PageId& id);

/// A page's content follows from the model with all that changes its bits, the adapter, and the tokens from
/// the beginning of the text to the page's end; the salt keeps texts apart that shall not know of one
/// another. Without the key nobody can make two of them meet.
class PageNames {
 public:
  PageNames(const base::KeyedHash::Key& key, const PageId& model) : key_(key), model_(model) {}

  /// What stands before the first page. `adapter`: of its weights; all 0: none.
  PageId root(const PageId& adapter, std::string_view salt) const;
  /// Of the full pages of `tokens`, which stand behind `root`, one after another.
  std::vector<PageId> of(const PageId& root, std::span<const int64_t> tokens, int64_t page_tokens) const;

 private:
  base::KeyedHash::Key key_;
  PageId model_;
};

}  // namespace trireme::engine
