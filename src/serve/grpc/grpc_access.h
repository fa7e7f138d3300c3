// Whether a gRPC caller may make a call; internal to the gRPC listener.
#pragma once

#include <string_view>

#include "serve/access/access.h"
#include "serve/grpc/grpc_call.h"

namespace trireme::serve {

/// Throws unavailable, as Triton does, unless the caller may make a call of this category on some model:
/// asked before a byte of a message is read.
void require_access(const AccessRules& rules, const GrpcCall& call, Category category);
/// Likewise on this model (empty: on none), which the message names.
void require_access(const AccessRules& rules, const GrpcCall& call, Category category,
                    std::string_view model);

}  // namespace trireme::serve
