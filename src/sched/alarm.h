// A sleep that others can shorten.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>

namespace trireme::sched {

/// Waits to be notified, or until the steady clock says `ns`; INT64_MAX: as long as it takes.
inline void wait_until(std::condition_variable& changed, std::unique_lock<std::mutex>& lock, int64_t ns) {
  if (ns == INT64_MAX) return changed.wait(lock);
  changed.wait_until(lock, std::chrono::steady_clock::time_point{std::chrono::nanoseconds(ns)});
}

/// When one thread looks next: it sleeps until then, or until the earliest time that others ask for
/// meanwhile. Everything is called with the mutex of its owner held, which guards it.
class Alarm {
 public:
  /// The thread that looks: sleeps until `ns` or earlier.
  void sleep(std::unique_lock<std::mutex>& lock, int64_t ns) {
    rings_ns_ = ns;
    wait_until(changed_, lock, ns);
    rings_ns_ = 0;
  }
  /// It must look at `ns` at the latest. Costs no wake-up where it would anyhow, or is awake.
  void set(int64_t ns) {
    if (ns >= rings_ns_) return;
    rings_ns_ = ns;
    changed_.notify_one();
  }
  /// It must look now.
  void ring() { changed_.notify_all(); }

 private:
  std::condition_variable changed_;
  int64_t rings_ns_ = 0;  ///< 0: nobody sleeps
};

}  // namespace trireme::sched
