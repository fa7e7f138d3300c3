// KServe's service, health and reflection as methods of gRPC calls; internal to the gRPC listener.
#pragma once

#include <memory>

#include "serve/grpc/grpc_call.h"

namespace trireme::serve {

class GrpcHealth;
class KserveCore;

constexpr const char* kGrpcServiceName = "inference.GRPCInferenceService";

/// `core` and `health` outlive the routes.
std::unique_ptr<GrpcRoutes> make_kserve_routes(KserveCore& core, const GrpcHealth& health);

}  // namespace trireme::serve
