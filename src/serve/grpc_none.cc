// Stands in for the gRPC listener in builds without gRPC.
#if !TRIREME_GRPC
#include "base/error.h"
#include "serve/grpc_server.h"

namespace trireme::serve {

struct GrpcServer::Impl {};

GrpcServer::GrpcServer(const GrpcServerOptions&, KserveCore&) {
  base::fail_unsupported(
      "this build has no gRPC: start with --grpc-port -1, or build with Debian's libgrpc++-dev");
}
GrpcServer::~GrpcServer() = default;
uint16_t GrpcServer::port() const { return 0; }
void GrpcServer::stop_accepting() {}
bool GrpcServer::drain(std::chrono::milliseconds) { return true; }
void GrpcServer::stop() {}
bool GrpcServer::is_built() { return false; }

}  // namespace trireme::serve
#endif
