// The standard health service: whether the server takes requests, asked once or watched.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "serve/grpc/grpc_call.h"

namespace trireme::serve {

/// Knows the server as a whole ("") and the services named to it. Any thread.
class GrpcHealth {
 public:
  /// `is_serving` is asked for each answer, and now and then for those who watch.
  GrpcHealth(std::vector<std::string> services, std::function<bool()> is_serving);

  /// Handlers for the two methods, "Check" and "Watch"; null for another name.
  std::unique_ptr<GrpcHandler> open(std::string_view method, const std::shared_ptr<GrpcCall>& call) const;

  // For the handlers.
  bool knows(const std::string& service) const;
  bool is_serving() const { return is_serving_(); }

 private:
  const std::vector<std::string> services_;
  const std::function<bool()> is_serving_;
};

}  // namespace trireme::serve
