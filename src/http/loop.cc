// Event loop of the HTTP server: edge-triggered epoll, accepting and placing connections, timers, drain.
#include "http/loop.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <ctime>
#include <exception>
#include <new>

namespace trireme::http {
namespace {

constexpr int64_t kMs = 1'000'000;  // ns
constexpr size_t kFewConnections = 8;
// How many times as long a loop looks whose requests are all answered on it: after so many turns without an
// answer from another thread, which would want the core.
constexpr int64_t kHereFactor = 3;
constexpr int kTurnsHere = 16;

// A connection for another loop, on its way there.
struct AdoptMail final : Mail {
  AdoptMail(Loop& to, Descriptor accepted) : loop(to), fd(std::move(accepted)) {}
  Loop& loop;
  Descriptor fd;
  void deliver() override {
    loop.adopt(std::move(fd));
    delete this;
  }
  void discard() override { delete this; }
};

struct CloseListenerMail final : Mail {
  Loop* loop;
  void deliver() override {
    loop->close_listener();
    delete this;
  }
  void discard() override { delete this; }
};

// How often deadlines are looked at: an eighth of the shortest, between 5 and 250 ms.
int64_t tick_of(const ServerOptions& o) {
  const auto shortest =
      std::min({o.header_timeout, o.body_timeout, o.idle_timeout, o.write_timeout, o.drain_grace}).count();
  return std::clamp<int64_t>(shortest / 8, 5, 250) * kMs;
}

}  // namespace

int64_t steady_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

Loop::Loop(Shared& shared)
    : shared_(shared), mailbox_(std::make_shared<Mailbox>()), tick_ns_(tick_of(shared.options)) {
  epoll_fd_ = epoll_create1(EPOLL_CLOEXEC);
  if (epoll_fd_ < 0)
    base::fail(base::ErrorCode::exhausted, "cannot create an epoll descriptor: errno ", errno);
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.ptr = mailbox_.get();
  epoll_ctl(epoll_fd_, EPOLL_CTL_ADD, mailbox_->wake_fd(), &event);
}

Loop::~Loop() {
  if (listen_fd_ >= 0) ::close(listen_fd_);
  if (spare_fd_ >= 0) ::close(spare_fd_);
  ::close(epoll_fd_);
}

void Loop::listen_on(int fd) {
  listen_fd_ = fd;
  spare_fd_ = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  listening_.store(true);
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.ptr = this;
  epoll_ctl(epoll_fd_, EPOLL_CTL_ADD, fd, &event);
}

/// One connection's turn. What it throws (there is no memory left) ends that connection; the others go on.
template <class Turn>
void Loop::guarded(LoopConnection& connection, const Turn& turn) {
  try {
    turn();
  } catch (const std::exception&) {
    connection.close();
  }
}

void Loop::run() {
  mailbox_->owner.store(std::this_thread::get_id());
  // OpenSSL writes with write(): without this a client that leaves mid-answer would end the process.
  sigset_t pipe;
  sigemptyset(&pipe);
  sigaddset(&pipe, SIGPIPE);
  pthread_sigmask(SIG_BLOCK, &pipe, nullptr);
  std::array<epoll_event, 256> events;
  while (!shared_.stopping.load(std::memory_order_relaxed)) {
    const int count = wait_for(events);
    now_ns_ = steady_ns();
    for (int i = 0; i < count; ++i) {
      void* who = events[static_cast<size_t>(i)].data.ptr;
      if (who == mailbox_.get()) {
        mailbox_->drain_wake_fd();
      } else if (who == this) {
        accept_all();
      } else {
        auto& connection = *static_cast<LoopConnection*>(who);
        guarded(connection, [&] { connection.on_events(events[static_cast<size_t>(i)].events); });
      }
    }
    turns_here_ = mailbox_->deliver_all() ? 0 : std::min(turns_here_ + 1, kTurnsHere);
    handle_revisits();
    if (shared_.draining.load(std::memory_order_relaxed) && !draining_) begin_drain();
    if (now_ns_ >= next_timer_check_ns_) check_timers();
    bury();
  }
  for (const auto& connection : connections_) connection->close();
  bury();
  close_listener();
  mailbox_->owner.store(std::thread::id());
  mailbox_->close();
}

/// Sleeps until something is ready; where requests of a few connections have been following answers closely
/// it first looks again and again for a moment, which saves the wake-up of a sleeping core. With many
/// connections a wake-up finds several requests, so it is worth its price.
int Loop::wait_for(std::span<epoll_event> events) {
  const auto look = [&](int timeout) {
    return epoll_wait(epoll_fd_, events.data(), static_cast<int>(events.size()), timeout);
  };
  int timeout = sleep_ms();
  const int64_t spin_ns =
      shared_.options.spin.count() * 1'000 * (turns_here_ == kTurnsHere ? kHereFactor : 1);
  const bool is_bulk = std::exchange(takes_bulk_, false);
  if (timeout == 0 || spin_ns == 0 || connections_.empty() || connections_.size() > kFewConnections) {
    if (timeout != 0 && !mailbox_->about_to_sleep()) timeout = 0;
    const int count = look(timeout);
    mailbox_->woke_up();
    return count;
  }
  const int64_t begin_ns = steady_ns();
  const bool spins =
      !is_bulk && idle_ns_ < 2 * spin_ns;  // a wait with a sleep in it is longer by the wake-up
  int count = spins ? look(0) : 0;
  while (spins && count == 0 && !mailbox_->has_mail() && steady_ns() - begin_ns < spin_ns) count = look(0);
  const bool was_in_vain = spins && count == 0 && !mailbox_->has_mail();
  if (count == 0 && mailbox_->about_to_sleep()) count = look(timeout);
  mailbox_->woke_up();
  // An eighth of each: a dozen quick ones in a row begin the spinning; one in vain ends it for some dozens.
  const int64_t idle_ns = std::min(steady_ns() - begin_ns, 4 * spin_ns);
  idle_ns_ = was_in_vain ? 16 * spin_ns : idle_ns_ + (idle_ns - idle_ns_) / 8;
  return count;
}

int Loop::sleep_ms() const {
  if (!revisits_.empty()) return 0;
  if (connections_.empty()) return draining_ ? 50 : 1000;
  return static_cast<int>(std::max<int64_t>(tick_ns_ / kMs, 1));
}

void Loop::accept_all() {
  while (listen_fd_ >= 0) {
    Descriptor fd(accept4(listen_fd_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
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
    // Balanced placement: each new connection goes to the loop that holds fewest.
    Loop* target = shared_.loops.front().get();
    for (const auto& loop : shared_.loops) {
      if (loop->load() < target->load()) target = loop.get();
    }
    target->load_.fetch_add(1, std::memory_order_relaxed);
    if (target == this) {
      adopt(std::move(fd));
    } else {
      target->adopt_from_anywhere(std::move(fd));
    }
  }
}

// Out of descriptors, a waiting client would keep the level-triggered listener ready and this thread
// spinning: the spare descriptor is given up for the moment it takes to refuse one.
bool Loop::turn_one_away() {
  if (spare_fd_ >= 0) ::close(spare_fd_);
  const int fd = accept4(listen_fd_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
  if (fd >= 0) refuse(fd);
  spare_fd_ = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  return fd >= 0;
}

void Loop::refuse(int fd) {
  shared_.counts.refused.fetch_add(1, std::memory_order_relaxed);
  const std::string_view words = shared_.refusal;
  [[maybe_unused]] const ssize_t sent = ::send(fd, words.data(), words.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  ::close(fd);
}

void Loop::adopt_from_anywhere(Descriptor fd) {
  auto* mail = new (std::nothrow) AdoptMail(*this, std::move(fd));
  mail != nullptr ? mailbox_->post(mail) : forget_connection();
}

void Loop::adopt(Descriptor fd) {
  try {
    open_connection(std::move(fd));
  } catch (const std::exception&) {  // no memory for it: closed, as if it had been refused
    shared_.counts.refused.fetch_add(1, std::memory_order_relaxed);
    forget_connection();
  }
}

void Loop::open_connection(Descriptor accepted) {
  const int fd = accepted.get(), on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  // A connection is in each list at most once: with room for all of them, closing one never allocates.
  if (connections_.size() == connections_.capacity()) connections_.reserve(2 * connections_.size() + 8);
  for (std::vector<LoopConnection*>* list : {&revisits_, &revisiting_, &retired_})
    list->reserve(connections_.capacity());
  auto connection = shared_.open(*this, std::move(accepted));
  connection->index = connections_.size();
  epoll_event event{};
  event.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET;
  event.data.ptr = connection.get();
  connections_.push_back(std::move(connection));
  if (epoll_ctl(epoll_fd_, EPOLL_CTL_ADD, fd, &event) != 0) connections_.back()->close();
}

/// One that is counted already and does not come to be.
void Loop::forget_connection() {
  load_.fetch_sub(1, std::memory_order_relaxed);
  shared_.counts.open.fetch_sub(1);
}

void Loop::close_listener_from_anywhere() {
  auto* mail = new CloseListenerMail;
  mail->loop = this;
  mailbox_->post(mail);
}

// What completed its handshake before is served; later clients are refused by the kernel.
void Loop::close_listener() {
  if (listen_fd_ < 0) return;
  if (!shared_.stopping.load()) accept_all();
  ::close(listen_fd_);
  listen_fd_ = -1;
  listening_.store(false);
}

const std::string& Loop::date_line() {
  const int64_t second = now_ns_ / 1'000'000'000;
  if (second != date_second_) {
    date_second_ = second;
    const std::time_t wall = std::time(nullptr);
    std::tm utc{};
    gmtime_r(&wall, &utc);
    std::array<char, 64> text;
    const size_t bytes = std::strftime(text.data(), text.size(), "Date: %a, %d %b %Y %H:%M:%S GMT\r\n", &utc);
    date_line_.assign(text.data(), bytes);
  }
  return date_line_;
}

void Loop::revisit(LoopConnection& connection) {
  if (connection.revisit_queued || connection.closed()) return;
  connection.revisit_queued = true;
  revisits_.push_back(&connection);
}

// One round: what is queued during it waits for the next turn, so that sockets are looked at in between.
void Loop::handle_revisits() {
  revisiting_.swap(revisits_);
  for (LoopConnection* connection : revisiting_) {
    connection->revisit_queued = false;
    if (!connection->closed()) guarded(*connection, [&] { connection->advance(); });
  }
  revisiting_.clear();
}

void Loop::check_timers() {
  for (const auto& connection : connections_) guarded(*connection, [&] { connection->check_deadline(); });
  next_timer_check_ns_ = now_ns_ + tick_ns_;
}

void Loop::begin_drain() {
  draining_ = true;
  drain_began_ns_ = now_ns_;
}

void Loop::retire(LoopConnection& connection) { retired_.push_back(&connection); }

// Deletion waits for the end of the turn: later events of this turn may still name the connection.
void Loop::bury() {
  for (LoopConnection* dead : retired_) {
    if (dead->revisit_queued) std::erase(revisits_, dead);
    const size_t at = dead->index;
    std::swap(connections_[at], connections_.back());
    connections_[at]->index = at;
    connections_.pop_back();
    forget_connection();
  }
  retired_.clear();
}

}  // namespace trireme::http
