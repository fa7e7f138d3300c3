// The gRPC listener: KServe's service, health and reflection on a port of their own.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "http/server.h"

namespace trireme::serve {

class KserveCore;

struct GrpcServerOptions {
  std::string host = "127.0.0.1";
  uint16_t port = 0;                            // 0: the system picks one, see GrpcServer::port()
  int threads = 2;                              // that read and write connections
  std::chrono::microseconds spin{0};            ///< as http::ServerOptions has it
  int max_connections = 8192;                   // further ones are closed
  size_t max_message_bytes = size_t{64} << 20;  ///< of a message, as it comes and inflated
  std::string tls_certificate_file;             // PEM; both set: TLS
  std::string tls_key_file;
  std::string tls_client_ca_file;  // set: clients must show a certificate that it signed
};

/// Listens from construction on. `core` outlives it.
class GrpcServer {
 public:
  /// Throws unavailable if the address cannot be bound, invalid_argument if the options make no sense.
  GrpcServer(const GrpcServerOptions& options, KserveCore& core);
  ~GrpcServer();
  GrpcServer(const GrpcServer&) = delete;
  GrpcServer& operator=(const GrpcServer&) = delete;

  uint16_t port() const;
  http::ServerCounts counts() const;
  /// With a core that drains: lets clients hear of it for a moment, by its refusals and the health service,
  /// then refuses new calls and connections, waits for those in flight, cuts off what is left after
  /// `timeout`. Returns whether all ended in time.
  bool drain(std::chrono::milliseconds timeout);
  /// Cuts everything off. Idempotent.
  void stop();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace trireme::serve
