// Loops that follow one another in one meeting of a team, where tasks wait for what they read instead of all
// members for all.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>

#include "base/threads/thread_pool.h"

namespace trireme::cpu {

/// How many of the tasks that something is made of are still to be done. One writer of each task, any
/// readers.
class Pending {
 public:
  void start(int64_t tasks) { left_.store(tasks, std::memory_order_relaxed); }
  /// One more is done; true for the last one, which sees what the others wrote.
  bool finish() { return left_.fetch_sub(1, std::memory_order_acq_rel) == 1; }
  /// Returns when all are done.
  void wait() const {
    while (left_.load(std::memory_order_acquire) > 0) {
#if defined(__x86_64__)
      __builtin_ia32_pause();
#endif
    }
  }

 private:
  std::atomic<int64_t> left_{0};
};

/// Calls body(stage, task) once for each task in [0, tasks[stage]), all within one meeting of the team. Each
/// member begins with its equal run of a stage's tasks, then helps the others, then goes on to the next
/// stage while others are still at this one. Every task of a stage is taken before its first taker goes on,
/// so a task may wait (Pending) for tasks of earlier stages, but for none of its own or a later one.
template <size_t kStages, class Body>
void run_stages(base::ThreadPool& pool, const std::array<int64_t, kStages>& tasks, const Body& body) {
  struct alignas(64) Share {
    std::atomic<int64_t> next{0};
    int64_t end = 0;
  };
  constexpr int64_t kMost = 64;  // members with a share of their own; larger teams only help
  const int64_t members = std::min<int64_t>(pool.size(), *std::max_element(tasks.begin(), tasks.end()));
  if (members <= 1) {
    for (size_t stage = 0; stage < kStages; ++stage) {
      for (int64_t task = 0; task < tasks[stage]; ++task) body(stage, task);
    }
    return;
  }
  const int64_t owners = std::min(members, kMost);
  std::array<std::array<Share, kMost>, kStages> shares;
  for (size_t stage = 0; stage < kStages; ++stage) {
    for (int64_t m = 0; m < owners; ++m) {
      Share& share = shares[stage][static_cast<size_t>(m)];
      share.next.store(tasks[stage] * m / owners, std::memory_order_relaxed);
      share.end = tasks[stage] * (m + 1) / owners;
    }
  }
  pool.run(members, [&](int64_t member) {
    for (size_t stage = 0; stage < kStages; ++stage) {
      for (int64_t k = 0; k < owners; ++k) {
        Share& share = shares[stage][static_cast<size_t>((member + k) % owners)];
        while (share.next.load(std::memory_order_relaxed) < share.end) {
          const int64_t task = share.next.fetch_add(1, std::memory_order_relaxed);
          if (task >= share.end) break;
          body(stage, task);
        }
      }
    }
  });
}

}  // namespace trireme::cpu
