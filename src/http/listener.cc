// Accepts connections within the server's limit, and does not spin if file descriptors run out.
#include "http/listener.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

namespace trireme::http {
namespace {

int open_spare() { return ::open("/dev/null", O_RDONLY | O_CLOEXEC); }

}  // namespace

Listener::Listener(Shared& shared, Descriptor fd)
    : shared_(shared), fd_(std::move(fd)), spare_(open_spare()) {}

void Listener::accept(int most, const std::function<void(Descriptor)>& place) {
  for (; most > 0; --most) {
    Descriptor fd(accept4(fd_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (fd.get() < 0) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      if ((errno == EMFILE || errno == ENFILE) && turn_one_away()) continue;
      return;
    }
    if (shared_.counts.open.load() >= shared_.options.max_connections) {
      refuse(fd.release());
      continue;
    }
    shared_.counts.open.fetch_add(1);
    shared_.counts.accepted.fetch_add(1, std::memory_order_relaxed);
    place(std::move(fd));
  }
}

// If descriptors run out, a waiting client would keep the level-triggered listener ready and this thread
// spinning. So the spare descriptor is released briefly, to accept and refuse one client.
bool Listener::turn_one_away() {
  spare_.reset();
  const int fd = accept4(fd_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
  if (fd >= 0) refuse(fd);
  spare_.emplace(open_spare());
  return fd >= 0;
}

void Listener::refuse(int fd) {
  shared_.counts.refused.fetch_add(1, std::memory_order_relaxed);
  const std::string_view words = shared_.refusal;
  [[maybe_unused]] const ssize_t sent = ::send(fd, words.data(), words.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  ::close(fd);
}

}  // namespace trireme::http
