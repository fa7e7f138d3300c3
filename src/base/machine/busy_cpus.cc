// Counts, for each processor, the threads of this process that compute on it.
#include "base/machine/busy_cpus.h"

#include <array>
#include <atomic>

namespace trireme::base {
namespace {

// The counts only guide a choice: any value is correct, so relaxed memory order suffices.
std::array<std::atomic<int>, CPU_SETSIZE> counts{};
thread_local int counted_on = -1;  // processor on which the calling thread is counted; -1: none

std::atomic<int>& count_of(int cpu) { return counts[static_cast<size_t>(cpu)]; }

bool is_known(int cpu) { return cpu >= 0 && cpu < CPU_SETSIZE; }

/// Claims the first processor of `usable` after `from` on which no thread computes; -1 if there is none.
int take_free(const cpu_set_t& usable, int from) {
  for (int step = 1; step < CPU_SETSIZE; ++step) {
    const int cpu = (from + step) % CPU_SETSIZE;
    int none = 0;
    if (CPU_ISSET(cpu, &usable) && count_of(cpu).compare_exchange_strong(none, 1, std::memory_order_relaxed))
      return cpu;
  }
  return -1;
}

}  // namespace

BusyCpu BusyCpu::here() {
  const int cpu = sched_getcpu();
  if (!is_known(cpu)) return {};
  count_of(cpu).fetch_add(1, std::memory_order_relaxed);
  counted_on = cpu;
  return BusyCpu(cpu);
}

BusyCpu BusyCpu::alone() {
  BusyCpu own = here();
  if (own.cpu_ < 0 || busy_threads(own.cpu_) < 2) return own;
  cpu_set_t usable;
  CPU_ZERO(&usable);
  if (sched_getaffinity(0, sizeof usable, &usable) != 0) return own;
  const int free = take_free(usable, own.cpu_);
  if (free < 0) return own;
  BusyCpu better(free);
  cpu_set_t only;
  CPU_ZERO(&only);
  CPU_SET(free, &only);
  if (sched_setaffinity(0, sizeof only, &only) != 0) return own;
  (void)sched_setaffinity(0, sizeof usable, &usable);
  counted_on = free;
  return better;
}

BusyCpu::~BusyCpu() {
  if (cpu_ < 0) return;
  count_of(cpu_).fetch_sub(1, std::memory_order_relaxed);
  if (counted_on == cpu_) counted_on = -1;
}

AwayFromCpu::AwayFromCpu() : cpu_(counted_on) {
  if (cpu_ >= 0) count_of(cpu_).fetch_sub(1, std::memory_order_relaxed);
}

AwayFromCpu::~AwayFromCpu() {
  if (cpu_ >= 0) count_of(cpu_).fetch_add(1, std::memory_order_relaxed);
}

int busy_threads(int cpu) { return is_known(cpu) ? count_of(cpu).load(std::memory_order_relaxed) : 0; }

}  // namespace trireme::base
