// Internal to the HTTP server: where an event loop's thread waits, and whether it looks around before it
// sleeps.
#pragma once

#include <sys/epoll.h>

#include <chrono>
#include <cstdint>
#include <span>

#include "http/descriptor.h"
#include "http/exchange.h"

namespace trireme::http {

/// Edge- or level-triggered readiness of descriptors, and mail. Where requests have been following answers
/// closely, a wait first looks again and again for a moment, which saves the wake-up of a sleeping core.
class EventWait {
 public:
  /// The mailbox's own descriptor is watched too: its events' data point to it. Throws exhausted if the
  /// system gives no descriptor.
  EventWait(Mailbox& mailbox, std::chrono::microseconds spin);

  /// Watches a descriptor; `who` is the data of its events. False if the system refuses.
  bool watch(int fd, uint32_t events, void* who);
  /// Waits for at most `timeout_ms` and gives the number of events. `may_spin`: looking before sleeping is
  /// worth it where it proved to be; with many connections a wake-up finds several requests, so it is worth
  /// its price.
  int wait(std::span<epoll_event> events, int timeout_ms, bool may_spin);

  /// A turn has ended that found mail or did not.
  void end_turn(bool had_mail) { turns_here_ = had_mail ? 0 : turns_here_ + (turns_here_ < kTurnsHere); }
  /// A large body has come or is to come: the next wait sleeps at once, so that one wake-up finds all of it.
  void takes_bulk() { takes_bulk_ = true; }

 private:
  // How many times as long a loop looks whose requests are all answered on it: after so many turns without an
  // answer from another thread, which would want the core.
  static constexpr int64_t kHereFactor = 3;
  static constexpr int kTurnsHere = 16;

  int look(std::span<epoll_event> events, int timeout_ms);
  int look_then_sleep(std::span<epoll_event> events, int timeout_ms, int64_t spin_ns, bool spins);

  Mailbox& mailbox_;
  Descriptor epoll_;
  const int64_t spin_ns_;
  bool takes_bulk_ = false;
  int turns_here_ = 0;                // without mail, up to kTurnsHere
  int64_t idle_ns_ = INT64_MAX / 16;  // smoothed time between a turn and the next event
};

}  // namespace trireme::http
