// Internal to the HTTP server: what its loops share.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "http/server.h"
#include "http/socket.h"

namespace trireme::http {

class Loop;

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
  std::vector<std::unique_ptr<Loop>> loops;
};

}  // namespace trireme::http
