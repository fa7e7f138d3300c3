// gRPC's status: code and message.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/error.h"

namespace trireme::serve {

enum class GrpcCode : uint8_t {
  ok = 0,
  cancelled = 1,
  invalid_argument = 3,
  deadline_exceeded = 4,
  not_found = 5,
  resource_exhausted = 8,
  unimplemented = 12,
  internal = 13,
  unavailable = 14
};

struct GrpcStatus {
  GrpcCode code = GrpcCode::ok;
  std::string message;
};

/// The status for one of our errors, by Triton's table.
GrpcStatus grpc_status(const base::Error& error);

/// A status message as it travels: bytes outside printable ASCII, and '%', become %XX. Of a long one the
/// beginning and "...": clients refuse an answer with more than some 8 KiB of fields as a whole.
std::string grpc_percent_encode(std::string_view text);

/// A grpc-timeout value ("100m") in nanoseconds; -1: it is none.
int64_t grpc_timeout_ns(std::string_view text);

}  // namespace trireme::serve
