// The one exception type of the program: names of its codes and the context chain.
#include "base/error.h"

namespace trireme::base {

std::string_view to_string(ErrorCode code) {
  switch (code) {
    case ErrorCode::invalid_argument: return "invalid_argument";
    case ErrorCode::not_found: return "not_found";
    case ErrorCode::unsupported: return "unsupported";
    case ErrorCode::exhausted: return "exhausted";
    case ErrorCode::unavailable: return "unavailable";
    case ErrorCode::internal: return "internal";
  }
  return "internal";
}

Error::Error(ErrorCode code, std::string message)
    : code_(code), message_(std::make_shared<const std::string>(std::move(message))) {}

Error Error::with(std::string_view noun) const { return Error(code_, concat(noun, ": ", *message_)); }

}  // namespace trireme::base
