// Server reflection: tools ask which services there are and what their messages look like.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "serve/grpc/grpc_call.h"

namespace trireme::serve {

/// Handler of ServerReflectionInfo, whose v1 and v1alpha are the same on the wire; null for another name.
std::unique_ptr<GrpcHandler> grpc_reflection(std::string_view method, const std::shared_ptr<GrpcCall>& call);

/// Full names of all services.
std::vector<std::string> grpc_service_names();

}  // namespace trireme::serve
