// What an event loop drives: one connection as a state machine over readiness, whatever protocol it speaks.
#pragma once

#include <cstddef>
#include <cstdint>

namespace trireme::http {

/// Owned by one loop and touched only on its thread.
class LoopConnection {
 public:
  virtual ~LoopConnection() = default;

  /// Takes epoll's flags and moves on.
  virtual void on_events(uint32_t events) = 0;
  /// Does all that can be done without waiting.
  virtual void advance() = 0;
  /// Acts if a deadline has passed; called every few dozen milliseconds.
  virtual void check_deadline() = 0;
  /// Idempotent.
  virtual void close() = 0;
  virtual bool closed() const = 0;

  size_t index = 0;  // place in the loop's list
  bool revisit_queued = false;
};

}  // namespace trireme::http
