// A bounded queue between threads: producers are refused when it is full, consumers wait, closing lets it run
// dry.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <utility>

namespace trireme::base {

enum class PushResult { ok, full, closed };

/// Any number of producers and consumers. Items leave in the order they came. A refused item stays with its
/// producer.
template <class T>
class BoundedQueue {
 public:
  explicit BoundedQueue(size_t capacity) : capacity_(capacity) {}
  BoundedQueue(const BoundedQueue&) = delete;
  BoundedQueue& operator=(const BoundedQueue&) = delete;

  /// Never waits. `item` is moved from only if the answer is ok.
  PushResult try_push(T&& item) {
    {
      const std::lock_guard lock(mutex_);
      if (closed_) return PushResult::closed;
      if (items_.size() >= capacity_) return PushResult::full;
      items_.push_back(std::move(item));
    }
    not_empty_.notify_one();
    return PushResult::ok;
  }

  /// Waits for room. `item` is moved from only if the answer is ok; never answers full.
  PushResult push(T&& item) {
    {
      std::unique_lock lock(mutex_);
      not_full_.wait(lock, [&] { return closed_ || items_.size() < capacity_; });
      if (closed_) return PushResult::closed;
      items_.push_back(std::move(item));
    }
    not_empty_.notify_one();
    return PushResult::ok;
  }

  /// The oldest item, or none at once.
  std::optional<T> try_pop() {
    std::unique_lock lock(mutex_);
    return take(lock);
  }

  /// Waits for an item; none means closed and empty.
  std::optional<T> pop() {
    std::unique_lock lock(mutex_);
    not_empty_.wait(lock, [&] { return closed_ || !items_.empty(); });
    return take(lock);
  }

  /// Waits for an item until SystemClock::now_ns() reaches `deadline_ns`; none means late, or closed and
  /// empty.
  std::optional<T> pop_until(int64_t deadline_ns) {
    const std::chrono::steady_clock::time_point deadline{std::chrono::nanoseconds(deadline_ns)};
    std::unique_lock lock(mutex_);
    not_empty_.wait_until(lock, deadline, [&] { return closed_ || !items_.empty(); });
    return take(lock);
  }

  /// Refuses further items and wakes everybody; what is inside can still be popped.
  void close() {
    {
      const std::lock_guard lock(mutex_);
      closed_ = true;
    }
    not_empty_.notify_all();
    not_full_.notify_all();
  }

  bool closed() const {
    const std::lock_guard lock(mutex_);
    return closed_;
  }
  size_t size() const {
    const std::lock_guard lock(mutex_);
    return items_.size();
  }
  size_t capacity() const { return capacity_; }

 private:
  std::optional<T> take(std::unique_lock<std::mutex>& lock) {
    if (items_.empty()) return std::nullopt;
    std::optional<T> item(std::move(items_.front()));
    items_.pop_front();
    lock.unlock();
    not_full_.notify_one();
    return item;
  }

  const size_t capacity_;
  mutable std::mutex mutex_;
  std::condition_variable not_empty_;
  std::condition_variable not_full_;
  std::deque<T> items_;
  bool closed_ = false;
};

}  // namespace trireme::base
