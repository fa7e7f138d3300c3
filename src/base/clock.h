// Time as a thing that is passed in, so that schedulers can be tested without waiting.
#pragma once

#include <atomic>
#include <cstdint>

namespace trireme::base {

constexpr int64_t kNsPerUs = 1'000;
constexpr int64_t kNsPerMs = 1'000'000;
constexpr int64_t kNsPerSecond = 1'000'000'000;

class Clock {
 public:
  virtual ~Clock() = default;
  /// Monotonic time; its zero means nothing.
  virtual int64_t now_ns() const = 0;
  /// Time since 1970-01-01 UTC; may jump.
  virtual int64_t wall_ns() const = 0;
  /// Returns when now_ns() has reached `deadline_ns`.
  virtual void sleep_until(int64_t deadline_ns) = 0;
};

/// The machine's clock. now_ns() is std::chrono::steady_clock's count, so it serves condition variables too.
class SystemClock : public Clock {
 public:
  int64_t now_ns() const override;
  int64_t wall_ns() const override;
  void sleep_until(int64_t deadline_ns) override;
};

/// Stands still until told; sleeping advances it at once. Safe to read from other threads.
class FakeClock : public Clock {
 public:
  explicit FakeClock(int64_t start_ns = 0, int64_t wall_start_ns = 0)
      : now_ns_(start_ns), wall_(wall_start_ns - start_ns) {}
  int64_t now_ns() const override { return now_ns_.load(); }
  int64_t wall_ns() const override { return now_ns_.load() + wall_; }
  void sleep_until(int64_t deadline_ns) override {
    if (deadline_ns > now_ns_.load()) now_ns_.store(deadline_ns);
  }
  void advance(int64_t by_ns) { now_ns_.fetch_add(by_ns); }

 private:
  std::atomic<int64_t> now_ns_;
  int64_t wall_;  // wall time minus monotonic time
};

}  // namespace trireme::base
