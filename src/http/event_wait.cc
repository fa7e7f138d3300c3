// Waits on epoll, and polls for a short time before sleeping if polling has paid off recently.
#include "http/event_wait.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/error.h"
#include "http/loop.h"

namespace trireme::http {

EventWait::EventWait(Mailbox& mailbox, std::chrono::microseconds spin)
    : mailbox_(mailbox), epoll_(epoll_create1(EPOLL_CLOEXEC)), spin_ns_(spin.count() * 1'000) {
  if (epoll_.get() < 0)
    base::fail(base::ErrorCode::exhausted, "cannot create an epoll descriptor: errno ", errno);
  watch(mailbox_.wake_fd(), EPOLLIN, &mailbox_);
}

bool EventWait::watch(int fd, uint32_t events, void* who) {
  epoll_event event{};
  event.events = events;
  event.data.ptr = who;
  return epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0;
}

int EventWait::look(std::span<epoll_event> events, int timeout_ms) {
  return epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), timeout_ms);
}

int EventWait::wait(std::span<epoll_event> events, int timeout_ms, bool may_spin) {
  const int64_t spin_ns = spin_ns_ * (turns_here_ == kTurnsHere ? kHereFactor : 1);
  const bool is_bulk = std::exchange(takes_bulk_, false);
  if (timeout_ms != 0 && spin_ns != 0 && may_spin) {
    // Twice spin_ns, because a wait that includes a sleep measures longer by the time of the wake-up.
    return look_then_sleep(events, timeout_ms, spin_ns, !is_bulk && idle_ns_ < 2 * spin_ns);
  }
  if (timeout_ms != 0 && !mailbox_.about_to_sleep()) timeout_ms = 0;
  const int count = look(events, timeout_ms);
  mailbox_.woke_up();
  return count;
}

int EventWait::look_then_sleep(std::span<epoll_event> events, int timeout_ms, int64_t spin_ns, bool spins) {
  const int64_t begin_ns = steady_ns();
  int count = spins ? look(events, 0) : 0;
  while (spins && count == 0 && !mailbox_.has_mail() && steady_ns() - begin_ns < spin_ns)
    count = look(events, 0);
  const bool was_in_vain = spins && count == 0 && !mailbox_.has_mail();
  if (count == 0 && mailbox_.about_to_sleep()) count = look(events, timeout_ms);
  mailbox_.woke_up();
  // Moving average, weight 1/8: a run of short waits starts spinning; one fruitless spin stops it for long.
  const int64_t idle_ns = std::min(steady_ns() - begin_ns, 4 * spin_ns);
  idle_ns_ = was_in_vain ? 16 * spin_ns : idle_ns_ + (idle_ns - idle_ns_) / 8;
  return count;
}

}  // namespace trireme::http
