// grpc.health.v1.Health.
#include "serve/grpc_health.h"

#include <algorithm>

#include "serve/grpc_unary.h"
#include "serve/proto/health.pb.h"

namespace trireme::serve {
namespace {

using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;

std::vector<HttpBodyPart> status_message(bool is_known, bool is_serving) {
  HealthCheckResponse response;
  response.set_status(!is_known    ? HealthCheckResponse::SERVICE_UNKNOWN
                      : is_serving ? HealthCheckResponse::SERVING
                                   : HealthCheckResponse::NOT_SERVING);
  return grpc_message(response);
}

}  // namespace

GrpcHealth::GrpcHealth(std::vector<std::string> services) : services_(std::move(services)) {}

std::unique_ptr<GrpcHandler> GrpcHealth::open(std::string_view method,
                                              const std::shared_ptr<GrpcCall>& call) {
  if (method == "Check") {
    return grpc_unary<HealthCheckRequest>(call, [this](GrpcCall& to, const HealthCheckRequest& request) {
      if (!knows(request.service()))
        base::fail(base::ErrorCode::not_found, "service is not known: ", request.service());
      to.answer(status_message(true, is_serving()));
    });
  }
  if (method != "Watch") return nullptr;
  return grpc_unary<HealthCheckRequest>(call, [this](GrpcCall& to, const HealthCheckRequest& request) {
    watch(to.shared_from_this(), request.service());
  });
}

bool GrpcHealth::knows(const std::string& service) const {
  return service.empty() || std::find(services_.begin(), services_.end(), service) != services_.end();
}

bool GrpcHealth::is_serving() const {
  return state_.with([](const State& s) { return s.is_serving; });
}

// Under the lock, so that a change and the first answer reach the client in their order.
void GrpcHealth::watch(const std::shared_ptr<GrpcCall>& call, const std::string& service) {
  const bool is_known = knows(service);
  state_.with([&](State& s) {
    std::erase_if(s.watchers, [](const Watcher& w) { return w.call.expired(); });
    call->send(status_message(is_known, s.is_serving));
    if (s.has_ended) return call->finish({GrpcCode::unavailable, "the server is shutting down"});
    s.watchers.push_back({call, is_known});
  });
}

void GrpcHealth::set_serving(bool on) {
  state_.with([&](State& s) {
    if (std::exchange(s.is_serving, on) == on) return;
    for (const Watcher& w : s.watchers) {
      const auto call = w.call.lock();
      if (call && w.is_known) call->send(status_message(true, on));
    }
  });
}

void GrpcHealth::end() {
  state_.with([](State& s) {
    s.has_ended = true;
    for (const Watcher& w : s.watchers) {
      if (const auto call = w.call.lock())
        call->finish({GrpcCode::unavailable, "the server is shutting down"});
    }
    s.watchers.clear();
  });
}

}  // namespace trireme::serve
