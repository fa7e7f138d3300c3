// The service grpc.health.v1.Health.
#include "serve/grpc/grpc_health.h"

#include <algorithm>
#include <optional>

#include "serve/grpc/grpc_unary.h"
#include "serve/proto/health.pb.h"

namespace trireme::serve {
namespace {

using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;

/// Answers when the request has arrived and whenever the answer changes, until the call ends.
class Watch final : public GrpcHandler {
 public:
  Watch(const GrpcHealth& health, std::shared_ptr<GrpcCall> call) : health_(health), call_(std::move(call)) {}

  size_t most_bytes() const override { return kSmallMessageBytes; }
  void on_message(http::Bytes&& message) override {
    if (has_question_) base::fail_unsupported("the method takes one message");
    service_ = grpc_parse<HealthCheckRequest>(message).service();
    has_question_ = true;
  }
  void on_end() override {
    if (!has_question_) base::fail_unsupported("the method takes one message");
    is_watched_ = true;
    tell();
  }
  void on_tick() override {
    if (is_watched_) tell();
  }
  void on_drain() override {
    on_tick();
    call_->finish({GrpcCode::unavailable, "the server is shutting down"});
  }

 private:
  void tell() {
    const auto now = !health_.knows(service_) ? HealthCheckResponse::SERVICE_UNKNOWN
                     : health_.is_serving()   ? HealthCheckResponse::SERVING
                                              : HealthCheckResponse::NOT_SERVING;
    if (told_ == now) return;
    told_ = now;
    HealthCheckResponse response;
    response.set_status(now);
    call_->send(grpc_message(response));
  }

  const GrpcHealth& health_;
  const std::shared_ptr<GrpcCall> call_;
  std::string service_;
  bool has_question_ = false, is_watched_ = false;
  std::optional<HealthCheckResponse::ServingStatus> told_;
};

}  // namespace

GrpcHealth::GrpcHealth(std::vector<std::string> services, std::function<bool()> is_serving)
    : services_(std::move(services)), is_serving_(std::move(is_serving)) {}

std::unique_ptr<GrpcHandler> GrpcHealth::open(std::string_view method,
                                              const std::shared_ptr<GrpcCall>& call) const {
  if (method == "Watch") return std::make_unique<Watch>(*this, call);
  if (method != "Check") return nullptr;
  return grpc_unary<HealthCheckRequest>(call, [this](GrpcCall& to, const HealthCheckRequest& request) {
    if (!knows(request.service()))
      base::fail(base::ErrorCode::not_found, "service is not known: ", request.service());
    HealthCheckResponse response;
    response.set_status(is_serving() ? HealthCheckResponse::SERVING : HealthCheckResponse::NOT_SERVING);
    to.answer(grpc_message(response));
  });
}

bool GrpcHealth::knows(const std::string& service) const {
  return service.empty() || std::find(services_.begin(), services_.end(), service) != services_.end();
}

}  // namespace trireme::serve
