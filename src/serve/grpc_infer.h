// ModelInfer and ModelStreamInfer over gRPC's callback API; internal to the gRPC listener.
#pragma once

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

/// Reactors that own themselves; `core` outlives them.
grpc::ServerUnaryReactor* grpc_infer(KserveCore& core, grpc::CallbackServerContext* context,
                                     const grpc::ByteBuffer* request, grpc::ByteBuffer* response);
grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* grpc_stream_infer(
    KserveCore& core, grpc::CallbackServerContext* context);

}  // namespace trireme::serve
