// What answers a gRPC call, and who knows which handler that is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "http/message.h"

namespace trireme::serve {

class GrpcCall;

/// What answers one call. All calls come on the thread of the call's connection.
class GrpcHandler {
 public:
  virtual ~GrpcHandler() = default;
  /// Which byte of a message should lie on a cache line, by the message's first bytes.
  virtual size_t aligned_at(std::string_view /*begin*/) const { return 0; }
  /// Longest message that it takes; the listener's limit bounds it too.
  virtual size_t most_bytes() const { return SIZE_MAX; }
  /// The client owes its one message, and the end behind it, from the start; else it may send when it likes.
  virtual bool takes_one() const { return false; }
  virtual void on_message(http::Bytes&& message) = 0;
  /// The client has sent all its messages.
  virtual void on_end() = 0;
  /// The client has left, or the call's deadline has passed: no answer will arrive.
  virtual void on_cancel() {}
  /// What was sent before one count() has left.
  virtual void on_sent() {}
  /// The server is about to end.
  virtual void on_drain() {}
  /// Called now and then.
  virtual void on_tick() {}
};

/// Makes a call's handler, before any of its messages is read; null: there is no such method. Throws what it
/// refuses by.
class GrpcRoutes {
 public:
  virtual ~GrpcRoutes() = default;
  virtual std::unique_ptr<GrpcHandler> open(const std::shared_ptr<GrpcCall>& call) = 0;
};

}  // namespace trireme::serve
