// Bounds how many rows are under way in a model.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>

namespace trireme::batch {

/// Any thread.
class RowGate {
 public:
  explicit RowGate(int64_t most) : most_(most) {}

  /// Waits until fewer rows than the most are under way, then counts these. False: the gate was given up, and
  /// they are not counted.
  bool enter(int64_t rows) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return is_given_up_ || under_way_ < most_; });
    if (is_given_up_) return false;
    under_way_ += rows;
    return true;
  }
  void leave(int64_t rows) {
    // Told with the lock held: who waits for the last row may destroy the gate as soon as it knows.
    const std::lock_guard lock(mutex_);
    under_way_ -= rows;
    changed_.notify_all();
  }
  /// Lets nobody in from now on. What is under way should ask is_given_up(), and end soon where it is.
  void give_up() {
    const std::lock_guard lock(mutex_);
    is_given_up_ = true;
    changed_.notify_all();
  }
  bool is_given_up() const { return is_given_up_; }
  /// Waits until no row is under way.
  void wait_empty() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return under_way_ == 0; });
  }

 private:
  const int64_t most_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int64_t under_way_ = 0;
  std::atomic<bool> is_given_up_{false};
};

}  // namespace trireme::batch
