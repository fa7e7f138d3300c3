// Internal to the HTTP server: one event loop, its connections and their timers; everything here runs on its
// thread.
#pragma once

#include <sys/epoll.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "http/exchange.h"
#include "http/server.h"
#include "http/socket.h"
#include "http/loop_connection.h"

namespace trireme::http {

/// Counters shared by the loops of a server.
struct SharedCounts {
  std::atomic<int64_t> open{0};
  std::atomic<uint64_t> accepted{0}, refused{0}, requests{0}, malformed{0}, timeouts{0}, gone{0};
};

/// What all loops of a server share, unchanging but for the counters and the two requests to end.
struct Shared {
  ServerOptions options;
  Handler handler;
  LoopConnectionMaker open;
  std::string_view refusal;  // what a connection over the limit is told before it is closed
  std::unique_ptr<TlsContext> tls;
  SharedCounts counts;
  std::atomic<bool> draining{false};
  std::atomic<bool> stopping{false};
  std::vector<std::unique_ptr<class Loop>> loops;
};

class Loop {
 public:
  explicit Loop(Shared& shared);
  ~Loop();
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

  /// Runs until Shared::stopping; call from one thread.
  void run();
  /// Makes this loop the one that accepts. Before run().
  void listen_on(int fd);

  // For connections, on this thread.
  Shared& shared() { return shared_; }
  const std::shared_ptr<Mailbox>& mailbox() const { return mailbox_; }
  int64_t now_ns() const { return now_ns_; }
  bool draining() const { return draining_; }
  int64_t drain_began_ns() const { return drain_began_ns_; }
  /// `Date: ...\r\n`, renewed once a second.
  const std::string& date_line();
  /// Calls connection.advance() before the loop sleeps again.
  void revisit(LoopConnection& connection);
  /// Deletes the connection at the end of this turn.
  void retire(LoopConnection& connection);

  /// A large body has come or is to come: the loop sleeps at once, so that one wake-up finds all of the next.
  void takes_bulk() { takes_bulk_ = true; }

  // From any thread.
  void adopt_from_anywhere(Descriptor fd);
  void close_listener_from_anywhere();
  bool listening() const { return listening_.load(); }
  int64_t load() const { return load_.load(std::memory_order_relaxed); }

  // Mail bodies.
  void adopt(Descriptor fd);
  void close_listener();

 private:
  template <class Turn>
  static void guarded(LoopConnection& connection, const Turn& turn);
  void open_connection(Descriptor fd);
  void forget_connection();
  void accept_all();
  void refuse(int fd);
  bool turn_one_away();
  void handle_revisits();
  void check_timers();
  void begin_drain();
  int wait_for(std::span<epoll_event> events);
  int sleep_ms() const;
  void bury();

  Shared& shared_;
  std::shared_ptr<Mailbox> mailbox_;
  int epoll_fd_ = -1;
  int listen_fd_ = -1;
  int spare_fd_ = -1;  // see turn_one_away()
  std::atomic<bool> listening_{false};
  std::atomic<int64_t> load_{0};  // open connections, for placement
  int64_t now_ns_ = 0;
  int64_t next_timer_check_ns_ = 0;
  int64_t tick_ns_ = 0;
  bool takes_bulk_ = false;
  int turns_here_ = 0;                // without mail, up to a few
  int64_t idle_ns_ = INT64_MAX / 16;  // smoothed time between a turn and the next event
  bool draining_ = false;
  int64_t drain_began_ns_ = 0;
  int64_t date_second_ = -1;
  std::string date_line_;
  std::vector<std::unique_ptr<LoopConnection>> connections_;
  std::vector<LoopConnection*> revisits_, revisiting_;
  std::vector<LoopConnection*> retired_;
};

int64_t steady_ns();

}  // namespace trireme::http
