// Idle-priority threads that keep processors from halting while work is expected soon.
#include "base/machine/halt_polling.h"

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <system_error>

#include "base/error.h"

namespace trireme::base {
namespace {

constexpr int64_t kLongestNs = 3'600'000'000'000;

int64_t steady_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

inline void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

/// Gives the calling thread the idle priority and binds it to `cpu`. False if the system refuses (a sandbox);
/// the thread must then not poll, as at normal priority it would take processor time from threads with work.
bool settle(int cpu) {
  const sched_param none{};
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(cpu, &one);
  return sched_setscheduler(0, SCHED_IDLE, &none) == 0 && sched_setaffinity(0, sizeof one, &one) == 0;
}

}  // namespace

HaltPolling::HaltPolling(int64_t duration_ns, const std::vector<int>& cpus)
    : duration_ns_(std::min(duration_ns, kLongestNs)), last_ns_(steady_ns() - duration_ns_) {
  for (const int cpu : cpus) require(cpu >= 0 && cpu < CPU_SETSIZE, "no processor ", cpu);
  threads_.reserve(cpus.size());
  try {
    for (const int cpu : cpus) threads_.emplace_back([this, cpu] { poll(cpu); });
  } catch (const std::system_error&) {  // the process may start no more threads; those started suffice
  }
}

HaltPolling::~HaltPolling() {
  stop_.store(true);
  calls_.fetch_add(1);
  calls_.notify_all();
  for (std::thread& t : threads_) t.join();
}

bool HaltPolling::is_due() const {
  return steady_ns() - last_ns_.load(std::memory_order_relaxed) < duration_ns_;
}

void HaltPolling::worked() {
  last_ns_.store(steady_ns());
  if (asleep_.load() == 0) return;
  calls_.fetch_add(1);
  calls_.notify_all();
}

int HaltPolling::polling() const { return static_cast<int>(threads_.size()) - asleep_.load(); }

void HaltPolling::poll(int cpu) {
  constexpr int kPauses = 64;  // a few microseconds between two checks
  if (!settle(cpu)) return static_cast<void>(asleep_.fetch_add(1));
  while (!stop_.load(std::memory_order_relaxed)) {
    while (is_due() && !stop_.load(std::memory_order_relaxed)) {
      for (int i = 0; i < kPauses; ++i) pause_cpu();
    }
    const uint32_t seen = calls_.load();
    asleep_.fetch_add(1);
    // worked() called after this check sees asleep_ > 0, and so wakes this thread.
    if (!is_due() && !stop_.load()) calls_.wait(seen);
    asleep_.fetch_sub(1);
  }
}

}  // namespace trireme::base
