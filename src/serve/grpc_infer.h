// ModelInfer and ModelStreamInfer over gRPC's callback API; internal to the gRPC listener.
#pragma once

#include "serve/access.h"

namespace grpc {
class ByteBuffer;
class CallbackServerContext;
class ServerUnaryReactor;
class Status;
template <class Request, class Response>
class ServerBidiReactor;
}  // namespace grpc

namespace trireme::base {
class Error;
}

namespace trireme::serve {

class KserveCore;

/// The gRPC status for one of our errors, by Triton's table.
grpc::Status grpc_status(const base::Error& error);

/// Throws unavailable, as Triton does, unless the caller may make calls of this category.
void require_access(const KserveCore& core, const grpc::CallbackServerContext& context, Category category);

/// Reactors that own themselves; `core` outlives them.
grpc::ServerUnaryReactor* grpc_infer(KserveCore& core, grpc::CallbackServerContext* context,
                                     const grpc::ByteBuffer* request, grpc::ByteBuffer* response);
grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* grpc_stream_infer(
    KserveCore& core, grpc::CallbackServerContext* context);

}  // namespace trireme::serve
