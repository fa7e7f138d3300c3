// A cache of values that are expensive to make and shared by several owners (packed weights, compiled
// programs).
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>

namespace trireme::base {

/// Maps a text key to a shared value; a value lives as long as somebody outside the cache holds it.
class SharedCache {
 public:
  /// Returns the live value of `key`, or calls `make` (at most once at a time per cache) and keeps a weak
  /// reference. The caller must use one type per key.
  template <class T>
  std::shared_ptr<const T> get(const std::string& key,
                               const std::function<std::shared_ptr<const T>()>& make) {
    const std::lock_guard lock(mutex_);
    if (auto found = std::static_pointer_cast<const T>(entries_[key].lock())) return found;
    std::shared_ptr<const T> made = make();
    entries_[key] = made;
    return made;
  }

 private:
  std::mutex mutex_;
  std::map<std::string, std::weak_ptr<const void>> entries_;
};

}  // namespace trireme::base
