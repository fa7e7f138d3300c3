// A thread that runs the steps of a program which stand aside of the computation: one after another, as they
// are given.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <thread>

namespace trireme::runtime {

/// Owned and fed by one thread. Jobs are numbers; `run` executes one and may throw: later jobs are then
/// passed over until the failure was taken. No allocation and no lock after construction; waiting spins
/// briefly, then sleeps.
class SideLane {
 public:
  explicit SideLane(std::function<void(uint32_t job)> run);
  ~SideLane();
  SideLane(const SideLane&) = delete;
  SideLane& operator=(const SideLane&) = delete;

  /// Gives the next job; the n-th job since construction has the ticket n. What the caller wrote before, the
  /// job sees.
  uint32_t post(uint32_t job);
  /// Returns when the job of this ticket and all before it are done; what they wrote, the caller sees.
  void wait(uint32_t ticket);
  /// True once all jobs posted are done.
  bool is_idle() const {
    return done_.load(std::memory_order_acquire) == posted_.load(std::memory_order_relaxed);
  }
  /// Waits for all jobs, then throws what the first failed one threw.
  void finish();
  bool has_failed() const { return failed_.load(std::memory_order_acquire); }

 private:
  static constexpr uint32_t kRing = 256;  // jobs given and not yet begun
  static constexpr uint32_t kStop = 0xffffffffu;
  void work();

  std::function<void(uint32_t)> run_;
  std::atomic<uint32_t> jobs_[kRing] = {};
  alignas(64) std::atomic<uint32_t> posted_{0};
  alignas(64) std::atomic<uint32_t> done_{0};
  std::atomic<bool> failed_{false};
  std::exception_ptr failure_;
  std::thread thread_;
};

}  // namespace trireme::runtime
