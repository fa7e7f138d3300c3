// ModelInfer and ModelStreamInfer over gRPC.
#include "serve/grpc/grpc_infer.h"

#include <array>
#include <utility>

#include "serve/grpc/grpc_access.h"
#include "serve/grpc/grpc_message.h"
#include "serve/core/kserve_core.h"

namespace trireme::serve {
namespace {

/// While the server drains, new requests are refused with UNAVAILABLE, so that clients go elsewhere.
void require_open(const KserveCore& core) {
  if (core.is_draining()) base::fail(base::ErrorCode::unavailable, "the server is shutting down");
}

/// Parses a received message as a request of this call; its tensors are views of the message.
GrpcInferRequest request_of(const KserveCore& core, const GrpcCall& call, http::Bytes&& message) {
  require_open(core);
  const auto kept = std::make_shared<const http::Bytes>(std::move(message));
  const std::array<std::string_view, 1> pieces = {kept->view()};
  const bool by_header = core.tenants().names_by_header();
  const std::string tenant(by_header ? call.field(core.tenants().header()) : std::string_view());
  GrpcInferRequest parsed = parse_grpc_infer(pieces, kept, &core.regions(tenant));
  require_access(core.rules(), call, Category::inference, parsed.model_name);
  parsed.request.deadline_ns = call.deadline_ns();
  parsed.request.traceparent = call.field("traceparent");
  if (by_header) parsed.request.tenant = tenant;
  return parsed;
}

/// A call with one answer.
class UnaryInfer final : public GrpcHandler {
 public:
  UnaryInfer(KserveCore& core, std::shared_ptr<GrpcCall> call) : core_(core), call_(std::move(call)) {}

  size_t aligned_at(std::string_view begin) const override { return grpc_tensor_offset(begin); }
  bool takes_one() const override { return true; }
  void on_message(http::Bytes&& message) override {
    if (has_message_) base::fail_unsupported("ModelInfer takes one message");
    has_message_ = true;
    message_ = std::move(message);
  }
  void on_end() override {
    if (!has_message_) base::fail_unsupported("ModelInfer takes one message");
    const int64_t now_ns = core_.now_ns();
    GrpcInferRequest parsed = request_of(core_, *call_, std::move(message_));
    const auto model = core_.find(parsed.model_name, parsed.model_version);
    InferSink sink{.done =
                       [call = call_](InferResponse&& r) {
                         std::vector<http::BodyPart> message = grpc_infer_response(r, false);
                         r.leave();
                         http::Http2Fields trailers;
                         if (!r.traceparent.empty()) trailers.emplace_back("traceparent", r.traceparent);
                         call->answer(std::move(message), std::move(trailers));
                       },
                   .failed = [call = call_](const base::Error& e) { call->finish(grpc_status(e)); },
                   .cancelled = [call = call_] { return call->is_cancelled(); },
                   .received_ns = now_ns};
    core_.infer(model, std::move(parsed.request), std::move(sink));
  }

 private:
  KserveCore& core_;
  const std::shared_ptr<GrpcCall> call_;
  http::Bytes message_;
  bool has_message_ = false;
};

/// A stream of requests. Answers leave in the order in which they are ready. Reading pauses while too many
/// requests are unanswered, or their answers unread, so a client that does not read fills its own window.
class StreamInfer final : public GrpcHandler {
 public:
  StreamInfer(KserveCore& core, std::shared_ptr<GrpcCall> call)
      : core_(core), stream_(std::make_shared<Stream>()) {
    stream_->ends_on_error = call->field("triton_grpc_error") == "true";
    stream_->call = std::move(call);
  }

  size_t aligned_at(std::string_view begin) const override { return grpc_tensor_offset(begin); }

  void on_message(http::Bytes&& message) override {
    if (++open_ >= kMostOpen) stream_->call->hold(true);
    std::string id;
    try {
      submit(std::move(message), id);
    } catch (const base::Error& e) {
      stream_->fail(e, id);
    } catch (const std::exception& e) {
      stream_->fail(base::Error(base::ErrorCode::internal, e.what()), id);
    }
  }
  void on_end() override {
    has_ended_ = true;
    end_if_done();
  }
  void on_cancel() override { stream_->is_over = true; }
  /// The answer of a request has been sent.
  void on_sent() override {
    --open_;
    end_if_done();
    if (open_ == kMostOpen / 2) stream_->call->hold(false);
  }
  void on_drain() override {
    is_draining_ = true;
    end_if_done();
  }

 private:
  static constexpr int kMostOpen = 1024;

  /// State that the answering threads share.
  struct Stream {
    std::shared_ptr<GrpcCall> call;
    bool ends_on_error = false;
    std::atomic<bool> is_over{false};  // nobody will receive what is sent

    void put(const InferResponse& r) { call->send(grpc_infer_response(r, true)); }
    void fail(const base::Error& e, const std::string& id) {
      if (ends_on_error) {
        is_over = true;
        return call->finish(grpc_status(e));
      }
      std::vector<http::BodyPart> parts;
      parts.emplace_back(grpc_stream_error(e.message(), id));
      call->send(std::move(parts));
      call->count();
    }
  };

  void submit(http::Bytes&& message, std::string& id) {
    const int64_t now_ns = core_.now_ns();
    GrpcInferRequest parsed = request_of(core_, *stream_->call, std::move(message));
    id = parsed.request.id;
    const auto model = core_.find(parsed.model_name, parsed.model_version);
    InferSink sink{
        .done =
            [stream = stream_, wants_end = parsed.wants_empty_final](InferResponse&& r) {
              const bool is_said = !r.is_decoupled || wants_end;
              std::vector<http::BodyPart> last;
              if (is_said) last = grpc_infer_response(r, true);
              r.leave();
              if (is_said) stream->call->send(std::move(last));
              stream->call->count();
            },
        .failed = [stream = stream_, id](const base::Error& e) { stream->fail(e, id); },
        .cancelled = [stream = stream_] { return stream->is_over.load(std::memory_order_relaxed); },
        .received_ns = now_ns,
        .part = [stream = stream_](InferResponse&& r) { stream->put(r); }};
    core_.infer(model, std::move(parsed.request), std::move(sink));
  }
  void end_if_done() {
    if (open_ > 0) return;
    if (has_ended_) return stream_->call->finish({});
    if (is_draining_) stream_->call->finish({GrpcCode::unavailable, "the server is shutting down"});
  }

  KserveCore& core_;
  const std::shared_ptr<Stream> stream_;
  int open_ = 0;  // requests whose answer has not been sent
  bool has_ended_ = false, is_draining_ = false;
};

}  // namespace

std::unique_ptr<GrpcHandler> grpc_infer(KserveCore& core, const std::shared_ptr<GrpcCall>& call) {
  return std::make_unique<UnaryInfer>(core, call);
}

std::unique_ptr<GrpcHandler> grpc_stream_infer(KserveCore& core, const std::shared_ptr<GrpcCall>& call) {
  return std::make_unique<StreamInfer>(core, call);
}

}  // namespace trireme::serve
