// The gRPC listener.
#if TRIREME_GRPC
#include "serve/grpc_server.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/impl/service_type.h>

#include <algorithm>
#include <climits>
#include <mutex>
#include <thread>

#include "base/error.h"
#include "base/file.h"
#include "serve/grpc_service.h"

namespace trireme::serve {
namespace {

constexpr size_t kPemLimit = size_t{4} << 20;
/// What is on its way when a drain begins arrives within this; it is answered UNAVAILABLE, not cut off.
constexpr std::chrono::milliseconds kGrace{250};
constexpr int kWindowBytes = 4 << 20, kFrameBytes = 1 << 20, kReadBytes = 64 << 10;
constexpr const char* kServiceName = "inference.GRPCInferenceService";

std::shared_ptr<grpc::ServerCredentials> credentials(const GrpcServerOptions& options) {
  if (options.tls_certificate_file.empty() && options.tls_key_file.empty()) {
    base::require(options.tls_client_ca_file.empty(), "a client CA needs a certificate and its key");
    return grpc::InsecureServerCredentials();
  }
  base::require(!options.tls_certificate_file.empty() && !options.tls_key_file.empty(),
                "TLS needs both a certificate and its key");
  grpc::SslServerCredentialsOptions ssl;
  ssl.pem_key_cert_pairs.push_back({base::read_file(options.tls_key_file, kPemLimit),
                                    base::read_file(options.tls_certificate_file, kPemLimit)});
  if (!options.tls_client_ca_file.empty()) {
    ssl.pem_root_certs = base::read_file(options.tls_client_ca_file, kPemLimit);
    ssl.client_certificate_request = GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY;
  }
  return grpc::SslServerCredentials(ssl);
}

std::string address(const GrpcServerOptions& options) {
  const bool is_v6 = options.host.find(':') != std::string::npos;
  return (is_v6 ? "[" + options.host + "]" : options.host) + ":" + std::to_string(options.port);
}

void set_limits(grpc::ServerBuilder& builder) {
  // gRPC's own limit of 4 MiB breaks image batches; Triton lifts it in both directions, and so do its
  // clients.
  builder.SetMaxReceiveMessageSize(INT_MAX);
  builder.SetMaxSendMessageSize(INT_MAX);
  // With the library's window of 64 KiB an image of 600 KB waits for ten updates on its way in, and its
  // frames of 16 KiB come in forty pieces.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, kWindowBytes);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_FRAME_SIZE, kFrameBytes);
  builder.AddChannelArgument(GRPC_ARG_TCP_MIN_READ_CHUNK_SIZE, kReadBytes);
  // Triton's keep-alive defaults, so that clients tuned for it are not told to calm down.
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 7'200'000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 20'000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 0);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 2);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 300'000);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PING_STRIKES, 2);
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);  // a taken port is an error, not half the requests
}

/// The library has one process-wide switch each; it reads them when a server is built.
void enable_plugins() {
  static std::once_flag once;
  std::call_once(once, [] {
    grpc::EnableDefaultHealthCheckService(true);
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  });
}

}  // namespace

struct GrpcServer::Impl {
  std::unique_ptr<grpc::Service> service;
  std::unique_ptr<grpc::Server> server;
  int port = 0;
};

GrpcServer::GrpcServer(const GrpcServerOptions& options, KserveCore& core) : impl_(std::make_unique<Impl>()) {
  enable_plugins();
  impl_->service = make_kserve_service(core);
  grpc::ServerBuilder builder;
  builder.AddListeningPort(address(options), credentials(options), &impl_->port);
  builder.RegisterService(impl_->service.get());
  set_limits(builder);
  impl_->server = builder.BuildAndStart();
  if (impl_->server == nullptr || impl_->port == 0)
    base::fail(base::ErrorCode::unavailable, "cannot listen for gRPC on ", address(options));
  impl_->server->GetHealthCheckService()->SetServingStatus(kServiceName, true);
}

GrpcServer::~GrpcServer() { stop(); }

uint16_t GrpcServer::port() const { return static_cast<uint16_t>(impl_->port); }

void GrpcServer::stop_accepting() {
  if (impl_->server) impl_->server->GetHealthCheckService()->SetServingStatus(false);
}

bool GrpcServer::drain(std::chrono::milliseconds timeout) {
  if (!impl_->server) return true;
  const auto limit = std::chrono::system_clock::now() + timeout;
  std::this_thread::sleep_for(std::min(timeout, kGrace));
  impl_->server->Shutdown(limit);  // cancels what is left at the limit
  impl_->server.reset();
  return std::chrono::system_clock::now() < limit;
}

void GrpcServer::stop() {
  if (!impl_->server) return;
  impl_->server->Shutdown(std::chrono::system_clock::now());
  impl_->server.reset();
}

bool GrpcServer::is_built() { return true; }

}  // namespace trireme::serve
#endif
