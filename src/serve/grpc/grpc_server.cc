// The gRPC listener: HTTP/2 connections on event loops; each stream is a call.
#include "serve/grpc/grpc_server.h"

#include <algorithm>
#include <thread>

#include "base/error.h"
#include "serve/grpc/grpc_health.h"
#include "serve/grpc/grpc_service.h"
#include "serve/core/kserve_core.h"
#include "http/http2/http2_connection.h"

namespace trireme::serve {
namespace {

/// Requests on their way when a drain begins arrive within this; they get UNAVAILABLE instead of a reset.
constexpr std::chrono::milliseconds kGrace{250};

http::ServerOptions listener_options(const GrpcServerOptions& options) {
  http::ServerOptions to;
  to.spin = options.spin;
  to.host = options.host;
  to.port = options.port;
  to.threads = options.threads;
  to.max_connections = options.max_connections;
  to.tls_certificate_file = options.tls_certificate_file;
  to.tls_key_file = options.tls_key_file;
  to.tls_client_ca_file = options.tls_client_ca_file;
  to.tls_protocol = "h2";
  return to;
}

}  // namespace

struct GrpcServer::Impl {
  explicit Impl(const KserveCore& core) : health({kGrpcServiceName}, [&core] { return core.is_ready(); }) {}

  http::Http2Service service;
  GrpcHealth health;
  std::unique_ptr<GrpcRoutes> routes;
  std::unique_ptr<http::Server> listener;  // its threads use the members above
};

GrpcServer::GrpcServer(const GrpcServerOptions& options, KserveCore& core)
    : impl_(std::make_unique<Impl>(core)) {
  Impl& impl = *impl_;
  impl.routes = make_kserve_routes(core, impl.health);
  impl.service.open = [&routes = *impl.routes, most = options.max_message_bytes](
                          http::Loop& loop, http::Http2Session& session, bool is_local) {
    return std::make_shared<GrpcCall>(routes, session, loop.mailbox(), most, is_local);
  };
  try {
    impl.listener = std::make_unique<http::Server>(
        listener_options(options),
        [&service = impl.service](http::Loop& loop, http::Descriptor fd) {
          return std::make_unique<http::Http2Connection>(loop, std::move(fd), service);
        },
        std::string_view());
  } catch (const base::Error& e) {
    if (e.code() != base::ErrorCode::unavailable) throw;
    base::fail(e.code(), "cannot listen for gRPC on ", options.host, ":", options.port, ": ", e.message());
  }
}

GrpcServer::~GrpcServer() { stop(); }

uint16_t GrpcServer::port() const { return impl_->listener->port(); }

http::ServerCounts GrpcServer::counts() const { return impl_->listener->counts(); }

bool GrpcServer::drain(std::chrono::milliseconds timeout) {
  std::this_thread::sleep_for(std::min(timeout, kGrace));
  const bool all = impl_->listener->drain(std::max(timeout - kGrace, std::chrono::milliseconds(0)));
  impl_->listener->stop();
  return all;
}

void GrpcServer::stop() { impl_->listener->stop(); }

}  // namespace trireme::serve
