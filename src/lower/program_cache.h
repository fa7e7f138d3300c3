// A bounded cache of programs by the sizes that they were compiled for.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>

namespace trireme::lower {

/// Keeps the most recently used values. It is bounded because clients choose the sizes. To be used by one
/// owner thread.
template <class Key, class Value>
class ProgramCache {
 public:
  explicit ProgramCache(size_t most) : most_(std::max<size_t>(1, most)) {}

  /// Returns the value of a key; if there is none, stores what `make` returns, in place of the least recently
  /// used value if the cache is full. The reference stays valid until the next find().
  template <class Make>
  Value& find(const Key& key, const Make& make) {
    auto at = entries_.find(key);
    if (at == entries_.end()) {
      std::unique_ptr<Value> made = make();  // if it throws, nothing has changed
      while (entries_.size() >= most_) forget_oldest();
      at = entries_.emplace(key, Entry{std::move(made), 0}).first;
    }
    at->second.last_used = ++clock_;
    return *at->second.value;
  }

  void forget_oldest() {
    const auto oldest = std::min_element(entries_.begin(), entries_.end(), [](const auto& a, const auto& b) {
      return a.second.last_used < b.second.last_used;
    });
    if (oldest != entries_.end()) entries_.erase(oldest);
  }

  size_t size() const { return entries_.size(); }
  /// Returns the value of a key or null, without counting it as a use: ranks must evict the same programs, so
  /// only what all of them do counts.
  Value* peek(const Key& key) const {
    const auto at = entries_.find(key);
    return at == entries_.end() ? nullptr : at->second.value.get();
  }
  /// Calls use(key, value) for each entry, in the order of the keys.
  template <class Use>
  void for_each(const Use& use) const {
    for (const auto& [key, entry] : entries_) use(key, *entry.value);
  }

 private:
  struct Entry {
    std::unique_ptr<Value> value;
    uint64_t last_used;
  };
  size_t most_;
  uint64_t clock_ = 0;
  std::map<Key, Entry> entries_;
};

}  // namespace trireme::lower
