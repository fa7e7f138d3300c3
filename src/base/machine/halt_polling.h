// Processors that wait for work instead of halting: what a virtual machine's tail latency wants.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace trireme::base {

/// Keeps processors from halting for so long after the last work. A hypervisor gives a processor of its guest
/// that halts to others, and has to find a place for it when it wakes: often beside another one of the same
/// guest, on one core of the machine, so that both run at half their speed until it is moved, for 0.1 to 1 s.
/// One thread a processor polls at the lowest priority there is (SCHED_IDLE): whatever else there is to do
/// goes first. Costs the processors' time, so nothing for those who have a quota of it.
class HaltPolling {
 public:
  HaltPolling(int64_t duration_ns, const std::vector<int>& cpus);
  ~HaltPolling();
  HaltPolling(const HaltPolling&) = delete;
  HaltPolling& operator=(const HaltPolling&) = delete;

  /// Work begins or has ended. Any thread; does not wait.
  void worked();
  /// Threads that poll now.
  int polling() const;

 private:
  void poll(int cpu);
  bool is_due() const;

  const int64_t duration_ns_;
  alignas(64) std::atomic<int64_t> last_ns_;
  alignas(64) std::atomic<uint32_t> calls_{0};
  std::atomic<int> asleep_{0};
  std::atomic<bool> stop_{false};
  std::vector<std::thread> threads_;
};

}  // namespace trireme::base
