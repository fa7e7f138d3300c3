// KServe's service as gRPC's library wants it; internal to the gRPC listener.
#pragma once

#include <memory>

namespace grpc {
class Service;
}

namespace trireme::serve {

class KserveCore;

/// `core` outlives the service.
std::unique_ptr<grpc::Service> make_kserve_service(KserveCore& core);

}  // namespace trireme::serve
