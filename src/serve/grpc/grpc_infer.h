// ModelInfer and ModelStreamInfer over gRPC; internal to the gRPC listener.
#pragma once

#include <memory>

#include "serve/grpc/grpc_call.h"

namespace trireme::serve {

class KserveCore;

/// What answers one such call; `core` outlives it. Throw what they refuse by.
std::unique_ptr<GrpcHandler> grpc_infer(KserveCore& core, const std::shared_ptr<GrpcCall>& call);
std::unique_ptr<GrpcHandler> grpc_stream_infer(KserveCore& core, const std::shared_ptr<GrpcCall>& call);

}  // namespace trireme::serve
