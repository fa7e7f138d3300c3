// Internal to the HTTP server: what an HTTP/1.1 connection waits for its client to do, and until when.
#pragma once

#include <cstddef>
#include <cstdint>

#include "http/server.h"

namespace trireme::http {

/// Of a connection none of whose requests is being answered: between requests, within a head, within a body;
/// or after its last answer, until its client has ended too.
enum class Http1Phase : uint8_t { idle, head, body, linger };

/// Since when a connection is in its phase. A phase may last as the options say, a body longer for each byte
/// of it, so that a client has a pace to keep whatever it sends.
class Http1PhaseClock {
 public:
  explicit Http1PhaseClock(int64_t now_ns) : began_ns_(now_ns) {}

  Http1Phase phase() const { return phase_; }
  /// A request or an answer has ended: the next enter() begins the phase anew, even the same one.
  void renew() { is_renewed_ = true; }
  void enter(Http1Phase phase, int64_t now_ns);
  /// `body_bytes` of the body have come; `drain_began_ns` counts where the server is `draining`.
  int64_t due_ns(const ServerOptions& options, size_t body_bytes, bool draining,
                 int64_t drain_began_ns) const;

 private:
  Http1Phase phase_ = Http1Phase::idle;
  bool is_renewed_ = false;
  int64_t began_ns_;
};

}  // namespace trireme::http
