// Internal to the HTTP server: one event loop: its turns, its timer and the drain; everything here runs on
// its thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "http/connection_list.h"
#include "http/date_line.h"
#include "http/event_wait.h"
#include "http/exchange.h"
#include "http/listener.h"
#include "http/loop_connection.h"
#include "http/shared.h"

namespace trireme::http {

/// A turn: wait, take what the sockets say, deliver mail, revisit who asked for it, look at deadlines when a
/// tick has passed, bury who has closed.
class Loop {
 public:
  explicit Loop(Shared& shared);
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

  /// Runs until Shared::stopping; call from one thread.
  void run();
  /// Makes this loop the one that accepts. Before run().
  void listen_on(Descriptor fd);

  // For connections, on this thread.
  Shared& shared() { return shared_; }
  const std::shared_ptr<Mailbox>& mailbox() const { return mailbox_; }
  int64_t now_ns() const { return now_ns_; }
  bool draining() const { return drain_began_ns_ != kNotDraining; }
  int64_t drain_began_ns() const { return drain_began_ns_; }
  const std::string& date_line() { return date_.at(now_ns_); }
  /// Calls connection.advance() before the loop sleeps again.
  void revisit(LoopConnection& connection) { connections_.revisit(connection); }
  /// Deletes the connection at the end of this turn.
  void retire(LoopConnection& connection) { connections_.retire(connection); }
  /// A large body has come or is to come: the loop sleeps at once, so that one wake-up finds all of the next.
  void takes_bulk() { wait_.takes_bulk(); }

  // From any thread.
  void adopt_from_anywhere(Descriptor fd);
  void close_listener_from_anywhere();
  bool listening() const { return listening_.load(); }

  // Mail bodies.
  void adopt(Descriptor fd);
  void close_listener();

 private:
  static constexpr int64_t kNotDraining = -1;

  void place(Descriptor fd);
  void open_connection(Descriptor fd);
  void forget_connections(size_t count);
  int wait_for(std::span<epoll_event> events);
  void handle(const epoll_event& event);
  int sleep_ms() const;

  Shared& shared_;
  std::shared_ptr<Mailbox> mailbox_;
  EventWait wait_;
  std::unique_ptr<Listener> listener_;  // of the loop that accepts
  std::atomic<bool> listening_{false};
  std::atomic<int64_t> load_{0};  // open connections, for placement
  int64_t now_ns_ = 0;
  int64_t next_tick_ns_ = 0;
  const int64_t tick_ns_;
  int64_t drain_began_ns_ = kNotDraining;
  DateLine date_;
  ConnectionList connections_;
};

int64_t steady_ns();

}  // namespace trireme::http
