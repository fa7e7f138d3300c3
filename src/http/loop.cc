// Event loop of the HTTP server: edge-triggered epoll, placement of connections, timer, drain.
#include "http/loop.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <climits>
#include <csignal>
#include <exception>
#include <new>

namespace trireme::http {
namespace {

constexpr int64_t kMs = 1'000'000;  // ns
constexpr size_t kFewConnections = 8;
constexpr int kAcceptsPerTurn = 256;

// Carries a connection to another loop.
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

// The interval between checks of the deadlines: an eighth of the shortest timeout, between 5 and 250 ms.
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
    : shared_(shared),
      mailbox_(std::make_shared<Mailbox>()),
      wait_(*mailbox_, shared.options.spin),
      tick_ns_(tick_of(shared.options)) {}

void Loop::listen_on(Descriptor fd) {
  listener_ = std::make_unique<Listener>(shared_, std::move(fd));
  listening_.store(true);
  wait_.watch(listener_->fd(), EPOLLIN, this);
}

void Loop::run() {
  mailbox_->owner.store(std::this_thread::get_id());
  // OpenSSL writes with write(): a client that leaves mid-answer would otherwise end the process by SIGPIPE.
  sigset_t pipe;
  sigemptyset(&pipe);
  sigaddset(&pipe, SIGPIPE);
  pthread_sigmask(SIG_BLOCK, &pipe, nullptr);
  std::array<epoll_event, 256> events;
  while (!shared_.stopping.load(std::memory_order_relaxed)) {
    const int count = wait_for(events);
    now_ns_ = steady_ns();
    for (int i = 0; i < count; ++i) handle(events[static_cast<size_t>(i)]);
    wait_.end_turn(mailbox_->deliver_all());
    connections_.handle_revisits();
    if (shared_.draining.load(std::memory_order_relaxed) && !draining()) drain_began_ns_ = now_ns_;
    if (now_ns_ >= next_tick_ns_) {
      connections_.check_deadlines();
      next_tick_ns_ = now_ns_ + tick_ns_;
    }
    forget_connections(connections_.bury());
  }
  connections_.close_all();
  forget_connections(connections_.bury());
  close_listener();
  mailbox_->owner.store(std::thread::id());
  mailbox_->close();
}

int Loop::wait_for(std::span<epoll_event> events) {
  const bool may_spin = !connections_.empty() && connections_.size() <= kFewConnections;
  return wait_.wait(events, sleep_ms(), may_spin);
}

void Loop::handle(const epoll_event& event) {
  void* who = event.data.ptr;
  if (who == mailbox_.get()) {
    mailbox_->drain_wake_fd();
  } else if (who == this) {
    if (listener_) listener_->accept(kAcceptsPerTurn, [this](Descriptor fd) { place(std::move(fd)); });
  } else {
    auto& connection = *static_cast<LoopConnection*>(who);
    ConnectionList::take_turn(connection, [&] { connection.on_events(event.events); });
  }
}

int Loop::sleep_ms() const {
  if (connections_.has_revisits()) return 0;
  if (connections_.empty()) return draining() ? 50 : 1000;
  return static_cast<int>(std::max<int64_t>(tick_ns_ / kMs, 1));
}

// Balanced placement: each new connection goes to the loop with the fewest connections.
void Loop::place(Descriptor fd) {
  Loop* target = shared_.loops.front().get();
  const auto load_of = [](const Loop& loop) { return loop.load_.load(std::memory_order_relaxed); };
  for (const auto& loop : shared_.loops) {
    if (load_of(*loop) < load_of(*target)) target = loop.get();
  }
  target->load_.fetch_add(1, std::memory_order_relaxed);
  if (target == this) {
    adopt(std::move(fd));
  } else {
    target->adopt_from_anywhere(std::move(fd));
  }
}

void Loop::adopt_from_anywhere(Descriptor fd) {
  auto* mail = new (std::nothrow) AdoptMail(*this, std::move(fd));
  mail != nullptr ? mailbox_->post(mail) : forget_connections(1);
}

void Loop::adopt(Descriptor fd) {
  try {
    open_connection(std::move(fd));
  } catch (const std::exception&) {  // no memory for it: closed, and counted as refused
    shared_.counts.refused.fetch_add(1, std::memory_order_relaxed);
    forget_connections(1);
  }
}

void Loop::open_connection(Descriptor accepted) {
  const int fd = accepted.get(), on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  connections_.make_room();
  LoopConnection& connection = connections_.add(shared_.open(*this, std::move(accepted)));
  if (!wait_.watch(fd, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, &connection)) connection.close();
}

/// Subtracts counted connections that have closed or could not be opened.
void Loop::forget_connections(size_t count) {
  if (count == 0) return;
  load_.fetch_sub(static_cast<int64_t>(count), std::memory_order_relaxed);
  shared_.counts.open.fetch_sub(static_cast<int64_t>(count));
}

void Loop::close_listener_from_anywhere() {
  auto* mail = new CloseListenerMail;
  mail->loop = this;
  mailbox_->post(mail);
}

// Clients that completed their handshake before are served; later ones are refused by the kernel.
void Loop::close_listener() {
  if (!listener_) return;
  if (!shared_.stopping.load()) listener_->accept(INT_MAX, [this](Descriptor fd) { place(std::move(fd)); });
  listener_.reset();
  listening_.store(false);
}

}  // namespace trireme::http
