// Work that gives way to other work: its threads stand still between two parts of it while somebody says so.
#pragma once

#include <atomic>
#include <cstdint>

namespace trireme::base {

/// Threads that are here (Scope) ask between two parts of their work, and stand still while the point is
/// held. As a thread's priority, this belongs to the thread: nothing hands it down to what the thread runs.
/// Any thread may hold and release.
class PausePoint {
 public:
  /// From now on the threads that are here wait where they pass next.
  void hold() {
    if (held_.exchange(1) == 0) changes_.fetch_add(1, std::memory_order_relaxed);
  }
  /// All go on.
  void release() {
    if (held_.load(std::memory_order_relaxed) == 0 || held_.exchange(0) == 0) return;
    changes_.fetch_add(1, std::memory_order_relaxed);
    held_.notify_all();
  }
  /// Between two parts of the calling thread's work; some nanoseconds while nobody holds the point.
  void pass() {
    passes_.fetch_add(1, std::memory_order_relaxed);
    if (held_.load(std::memory_order_acquire) != 0) [[unlikely]]
      wait();
  }
  int waiting() const { return waiting_.load(); }  ///< threads that stand still
  /// Counts since the start: of pass(), and of how often the point was held or released.
  uint64_t passes() const { return passes_.load(std::memory_order_relaxed); }
  uint64_t changes() const { return changes_.load(std::memory_order_relaxed); }

  /// The point where the calling thread is; null: it gives way to nobody.
  static PausePoint* of_this_thread();
  /// The calling thread is at `point` (null: at none), which outlives this, until the end.
  class Scope {
   public:
    explicit Scope(PausePoint* point);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    PausePoint* const before_;
  };

 private:
  void wait();

  std::atomic<int> held_{0};
  std::atomic<int> waiting_{0};
  std::atomic<uint64_t> passes_{0}, changes_{0};
};

}  // namespace trireme::base
