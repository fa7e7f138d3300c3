// HTTP/1.1 server: event-loop threads that own their connections, a handler that may answer from any thread.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "http/descriptor.h"
#include "http/message.h"
#include "http/parser.h"
#include "http/reply.h"

namespace trireme::http {

struct ServerOptions {
  std::string host = "127.0.0.1";  // numeric address or name; "::" listens on both families
  uint16_t port = 0;               // 0: the system picks one, see Server::port()
  int threads = 2;
  /// How long a loop with few connections looks for the next request before it sleeps, where small requests
  /// have been following answers as quickly; 0: it sleeps at once.
  std::chrono::microseconds spin{0};
  int max_connections = 8192;  // further ones get a 503 and are closed
  int max_pipelined = 64;      // requests of one connection being answered at the same time
  /// Bytes of a connection's requests in work and of their answers, those to come taken for as large as the
  /// largest so far: from there on nothing is read from it but what one request needs.
  size_t max_held_bytes = size_t{8} << 20;
  Limits limits;
  std::chrono::milliseconds header_timeout{10'000};  // from a request's first byte to the end of its head
  std::chrono::milliseconds body_timeout{30'000};    // plus one second for each min_body_rate bytes received
  size_t min_body_rate = 16'384;                     // bytes per second, of answers that are read too
  std::chrono::milliseconds idle_timeout{75'000};    // between requests
  std::chrono::milliseconds write_timeout{30'000};   // without the client taking a byte
  std::chrono::milliseconds tight_timeout{1'000};    // the same while memory is tight
  std::chrono::milliseconds drain_grace{500};        // idle connections stay that long when a drain begins
  size_t compress_min_bytes = 1400;                  // smaller responses are never compressed; 0: none are
  std::string tls_certificate_file;                  // PEM; both set: HTTPS
  std::string tls_key_file;
  std::string tls_client_ca_file;  // PEM: clients must show a certificate that it signed
  std::string tls_protocol;        // ALPN name that secured clients must offer; empty: none is asked for
};

/// Called on a server thread for each complete request; must not block. Errors it throws become error
/// responses. The reply may be kept, moved to another thread, and used later.
using Handler = std::function<void(Request&&, Reply)>;

class Loop;
class LoopConnection;
/// Makes the state machine of an accepted socket, on its loop's thread.
using LoopConnectionMaker = std::function<std::unique_ptr<LoopConnection>(Loop& loop, Descriptor fd)>;

/// Counts since the start; any thread may read them.
struct ServerCounts {
  uint64_t connections_open = 0;
  uint64_t connections_accepted = 0;
  uint64_t connections_refused = 0;  // over max_connections
  uint64_t requests = 0;             // handed to the handler
  uint64_t requests_malformed = 0;   // answered without the handler
  uint64_t timeouts = 0;
  uint64_t clients_gone = 0;  // left while a request of theirs was being answered
};

/// Listens from construction on. Replies outliving the server are harmless: they go nowhere.
class Server {
 public:
  /// Throws unavailable if the address cannot be bound, invalid_argument if the options make no sense.
  Server(const ServerOptions& options, Handler handler);
  /// A listener for another protocol on the same kind of loops. `refusal` (static) is what connections over
  /// the limit are sent. Throws likewise.
  Server(const ServerOptions& options, LoopConnectionMaker open, std::string_view refusal);
  /// Stops without waiting for replies.
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  uint16_t port() const;
  ServerCounts counts() const;

  /// Closes the listening socket after taking in what already waits there.
  void stop_accepting();
  /// stop_accepting(), then answers what is in flight with `Connection: close`, closes idle connections after
  /// drain_grace, and waits up to `timeout` for all to end. Returns whether all did.
  bool drain(std::chrono::milliseconds timeout);
  /// Closes everything and joins the threads. Idempotent.
  void stop();

 private:
  Server(const ServerOptions& options, LoopConnectionMaker open, std::string_view refusal, Handler handler);
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace trireme::http
