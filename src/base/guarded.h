// A value that threads share: it can be reached only with its lock held.
#pragma once

#include <mutex>
#include <utility>

namespace trireme::base {

/// For short looks and changes; what is called inside must not come back for the same value.
template <class T>
class Guarded {
 public:
  Guarded() = default;
  explicit Guarded(T value) : value_(std::move(value)) {}

  /// Calls `use(value)` with the lock held and gives its result.
  template <class Use>
  decltype(auto) with(Use&& use) {
    const std::lock_guard lock(mutex_);
    return std::forward<Use>(use)(value_);
  }
  template <class Use>
  decltype(auto) with(Use&& use) const {
    const std::lock_guard lock(mutex_);
    return std::forward<Use>(use)(value_);
  }
  T copy() const {
    const std::lock_guard lock(mutex_);
    return value_;
  }

 private:
  mutable std::mutex mutex_;
  T value_{};
};

}  // namespace trireme::base
