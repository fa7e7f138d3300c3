// On which processors threads of this process compute, so that two never share one while another is free.
#pragma once

#include <sched.h>

#include <utility>

namespace trireme::base {

/// A thread's place among those that compute, until it is destroyed; empty where nobody knows the processor.
/// Linux puts a thread that wakes on the processor of the one that woke it where others seem taken, and a
/// hypervisor makes idle ones seem so: two batches then take turns on one processor for as long as they last.
class BusyCpu {
 public:
  BusyCpu() = default;
  /// Counts the calling thread where it runs.
  static BusyCpu here();
  /// The same, but first moves it to a processor of its own affinity on which nobody computes, where there is
  /// one and another thread computes on this one. Afterwards the thread may use all of its processors again.
  static BusyCpu alone();

  BusyCpu(BusyCpu&& other) noexcept : cpu_(std::exchange(other.cpu_, -1)) {}
  BusyCpu& operator=(BusyCpu&& other) noexcept {
    std::swap(cpu_, other.cpu_);
    return *this;
  }
  ~BusyCpu();

  int cpu() const { return cpu_; }  ///< -1: none

 private:
  explicit BusyCpu(int cpu) : cpu_(cpu) {}
  int cpu_ = -1;
};

/// While it lives the calling thread does not count where its BusyCpu says: it waits for others.
class AwayFromCpu {
 public:
  AwayFromCpu();
  ~AwayFromCpu();
  AwayFromCpu(const AwayFromCpu&) = delete;
  AwayFromCpu& operator=(const AwayFromCpu&) = delete;

 private:
  const int cpu_;  ///< -1: it did not count
};

/// Threads that compute on this processor.
int busy_threads(int cpu);

}  // namespace trireme::base
