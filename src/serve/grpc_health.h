// The standard health service: whether the server takes requests, asked once or watched.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/guarded.h"
#include "serve/grpc_call.h"

namespace trireme::serve {

/// Knows the server as a whole ("") and the services named to it. Any thread.
class GrpcHealth {
 public:
  explicit GrpcHealth(std::vector<std::string> services);

  /// Handlers for the two methods, "Check" and "Watch"; null for another name.
  std::unique_ptr<GrpcHandler> open(std::string_view method, const std::shared_ptr<GrpcCall>& call);
  /// Tells the watchers too.
  void set_serving(bool on);
  /// Ends all watching.
  void end();

  // For the handlers.
  bool knows(const std::string& service) const;
  /// Answers now and whenever it changes, until the call ends.
  void watch(const std::shared_ptr<GrpcCall>& call, const std::string& service);
  bool is_serving() const;

 private:
  struct Watcher {
    std::weak_ptr<GrpcCall> call;
    bool is_known = false;
  };
  struct State {
    bool is_serving = true, has_ended = false;
    std::vector<Watcher> watchers;
  };

  const std::vector<std::string> services_;
  base::Guarded<State> state_;
};

}  // namespace trireme::serve
