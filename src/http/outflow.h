// Internal to the HTTP server: what leaves a connection, how fast its peer takes it, and what it costs
// meanwhile.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/memory/memory_budget.h"
#include "http/pace.h"
#include "http/socket.h"

namespace trireme::http {

/// Bytes that wait for one socket, of either protocol. A peer that takes them too slowly is late; text that
/// waits for it counts as memory of answers. (Tensors count by themselves.)
class Outflow {
 public:
  Output& queue() { return queue_; }
  bool empty() const { return queue_.empty(); }
  size_t bytes() const { return queue_.bytes(); }

  /// The socket takes more, as epoll says.
  void open() { is_open_ = true; }
  /// Bytes wait, and the socket takes none.
  bool is_stuck() const { return !is_open_ && !empty(); }

  /// Writes as much as the socket takes; false: it is broken. `pace` is asked of the peer from then on.
  bool flush(Socket& socket, const PaceLimits& pace, int64_t now_ns);
  /// After a flush: counts what is left. False: there is no memory for it, and the reader should go.
  bool account() { return lease_.try_resize(empty() ? 0 : static_cast<int64_t>(queue_.text_bytes())); }
  /// When a stuck peer is too slow, or has taken nothing for `quiet_ns`.
  int64_t due_ns(int64_t quiet_ns) const { return reading_.due_ns(quiet_ns); }

 private:
  Output queue_;
  bool is_open_ = true;  // until a write says otherwise (edge-triggered)
  Pace reading_;         // the peer's, of what is in the queue
  uint64_t written_bytes_ = 0;
  base::MemoryLease lease_{base::MemoryUse::answers, 0};
};

}  // namespace trireme::http
