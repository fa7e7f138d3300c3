// ModelInfer and ModelStreamInfer over gRPC's callback API.
#if TRIREME_GRPC
#include "serve/grpc_infer.h"

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <chrono>
#include <deque>
#include <optional>
#include <utility>

#include "base/guarded.h"
#include "serve/grpc_message.h"
#include "serve/kserve_core.h"

namespace trireme::serve {
namespace {

using grpc::ByteBuffer;
using grpc::Slice;

/// A received message: slices share their memory with the transport, so keeping them copies nothing.
struct Received {
  std::vector<Slice> slices;
  std::vector<std::string_view> pieces;
};

std::shared_ptr<const Received> keep(const ByteBuffer& buffer) {
  auto kept = std::make_shared<Received>();
  base::require(buffer.Dump(&kept->slices).ok(), "the message cannot be read");
  for (const Slice& s : kept->slices) {
    kept->pieces.emplace_back(reinterpret_cast<const char*>(s.begin()), s.size());
  }
  return kept;
}

/// A message whose large parts stay where they are until they are sent.
ByteBuffer buffer_of(std::vector<HttpBodyPart> parts) {
  std::vector<Slice> slices;
  for (HttpBodyPart& part : parts) {
    auto* kept = new HttpBodyPart(std::move(part));
    const std::string_view bytes = kept->bytes();
    slices.emplace_back(
        const_cast<char*>(bytes.data()), bytes.size(), [](void* p) { delete static_cast<HttpBodyPart*>(p); },
        kept);
  }
  return ByteBuffer(slices.data(), slices.size());
}

/// While draining, new requests are told to go elsewhere: gRPC's own shutdown would call them cancelled.
void require_open(const KserveCore& core) {
  if (core.is_draining()) base::fail(base::ErrorCode::unavailable, "the server is shutting down");
}

/// The call's deadline on the steady clock; 0: it has none.
int64_t deadline_ns(const grpc::CallbackServerContext& context, int64_t now_ns) {
  const auto deadline = context.deadline();
  const auto now = std::chrono::system_clock::now();
  if (deadline - now > std::chrono::hours(24 * 365)) return 0;
  // A deadline that has passed is 1: long ago, not "none".
  const int64_t left_ns = std::chrono::duration_cast<std::chrono::nanoseconds>(deadline - now).count();
  return std::max<int64_t>(1, now_ns + left_ns);
}

/// One of the call's metadata, or empty.
std::string metadata_of(const grpc::CallbackServerContext& context, const std::string& name) {
  const auto& metadata = context.client_metadata();
  const auto at = metadata.find(name);
  return at == metadata.end() ? std::string() : std::string(at->second.data(), at->second.size());
}

/// The caller's trace context, and the tenant where a header tells.
void add_metadata(const KserveCore& core, const grpc::CallbackServerContext& context, InferRequest& request) {
  request.traceparent = metadata_of(context, "traceparent");
  if (core.tenants().names_by_header()) request.tenant = metadata_of(context, core.tenants().header());
}

/// A call that is answered once, from whichever thread is first: a result, an error, or the client's leaving.
class UnaryInfer final : public grpc::ServerUnaryReactor {
 public:
  UnaryInfer(KserveCore& core, ByteBuffer* response) : core_(core), state_(std::make_shared<State>()) {
    state_->reactor = this;
    state_->response = response;
  }

  void start(grpc::CallbackServerContext& context, const ByteBuffer& message) {
    state_->context = &context;
    const std::shared_ptr<State> state = state_;  // `this` may be gone once the sink has been called
    const int64_t now_ns = core_.now_ns();
    try {
      require_open(core_);
      require_access(core_, context, Category::inference);
      const std::shared_ptr<const Received> received = keep(message);
      GrpcInferRequest parsed = parse_grpc_infer(received->pieces, received, &core_.regions());
      parsed.request.deadline_ns = deadline_ns(context, now_ns);
      add_metadata(core_, context, parsed.request);
      const auto model = core_.find(parsed.model_name, parsed.model_version);
      InferSink sink{.done = [state](InferResponse&& r) { state->answer(std::move(r)); },
                     .failed = [state](const base::Error& e) { state->finish(grpc_status(e)); },
                     .cancelled = [state] { return state->is_cancelled.load(std::memory_order_relaxed); },
                     .received_ns = now_ns};
      core_.infer(model, std::move(parsed.request), std::move(sink));
    } catch (const base::Error& e) {
      state->finish(grpc_status(e));
    } catch (const std::exception& e) {
      state->finish({grpc::StatusCode::INTERNAL, e.what()});
    }
  }

  void OnCancel() override {
    state_->is_cancelled = true;
    state_->finish({grpc::StatusCode::CANCELLED, "the request was cancelled"});
  }
  void OnDone() override { delete this; }
  /// The reactions above are short, so the thread that wrote the answer may run them: no third thread wakes.
  bool InternalInlineable() override { return true; }

 private:
  /// Outlives the reactor in the sinks. The reactor lives at least until somebody has finished.
  struct State {
    std::atomic<bool> is_over{false}, is_cancelled{false};
    grpc::ServerUnaryReactor* reactor = nullptr;
    ByteBuffer* response = nullptr;
    grpc::CallbackServerContext* context = nullptr;

    void finish(const grpc::Status& status) {
      if (!is_over.exchange(true)) reactor->Finish(status);
    }
    void answer(InferResponse&& r) {
      ByteBuffer buffer = buffer_of(grpc_infer_response(r, false));
      r.leave();
      if (is_over.exchange(true)) return;
      if (!r.traceparent.empty()) context->AddTrailingMetadata("traceparent", r.traceparent);
      response->Swap(&buffer);
      reactor->Finish(grpc::Status::OK);
    }
  };

  KserveCore& core_;
  std::shared_ptr<State> state_;
};

/// A stream of requests. Answers leave in the order they come; one write is on its way at a time. Reading
/// pauses while too many requests are unanswered, so a client that does not read fills its own window. What
/// waits to be written are views of the models' outputs, a few hundred bytes each.
class StreamInfer final : public grpc::ServerBidiReactor<ByteBuffer, ByteBuffer>,
                          public std::enable_shared_from_this<StreamInfer> {
 public:
  StreamInfer(KserveCore& core, grpc::CallbackServerContext* context) : core_(core), context_(context) {
    const auto& metadata = context->client_metadata();
    const auto at = metadata.find("triton_grpc_error");
    ends_on_error_ = at != metadata.end() && at->second == "true";
  }

  void start(std::shared_ptr<StreamInfer> self) {
    self_ = std::move(self);
    StartRead(&message_);
  }

  void OnReadDone(bool ok) override {
    if (!ok) return leave();  // the client has sent all it wants to, or has gone
    const int open = open_.fetch_add(1) + 1;
    submit();
    // The client's own side counts as one.
    if (open <= kMostOpen && !is_finished_) StartRead(&message_);
  }
  void OnWriteDone(bool ok) override {
    if (!ok) is_cancelled_ = true;
    if (ends_request_) answered();
    pump(pending_.fetch_sub(1) - 1);
  }
  void OnCancel() override { is_cancelled_ = true; }
  void OnDone() override { self_.reset(); }

 private:
  static constexpr int kMostOpen = 1024;

  struct Item {
    ByteBuffer message;
    bool ends_request = true;  ///< its last answer
    bool is_end = false;       ///< nothing follows on this stream
    grpc::Status status;
  };

  void submit() {
    std::string id;
    try {
      require_open(core_);
      require_access(core_, *context_, Category::inference);
      const std::shared_ptr<const Received> received = keep(message_);
      message_.Clear();
      const int64_t now_ns = core_.now_ns();
      GrpcInferRequest parsed = parse_grpc_infer(received->pieces, received, &core_.regions());
      parsed.request.deadline_ns = deadline_ns(*context_, now_ns);
      add_metadata(core_, *context_, parsed.request);
      id = parsed.request.id;
      const auto model = core_.find(parsed.model_name, parsed.model_version);
      const auto self = shared_from_this();
      const bool wants_end = parsed.wants_empty_final;
      InferSink sink{.done =
                         [self, wants_end](InferResponse&& r) {
                           ByteBuffer buffer = buffer_of(grpc_infer_response(r, true));
                           r.leave();
                           if (r.is_decoupled && !wants_end)
                             return self->answered();  // its answers have been put
                           self->put({std::move(buffer)});
                         },
                     .failed = [self, id](const base::Error& e) { self->put_error(e, id); },
                     .cancelled = [self] { return self->is_cancelled_.load(std::memory_order_relaxed); },
                     .received_ns = now_ns,
                     .part =
                         [self](InferResponse&& r) {
                           self->put({buffer_of(grpc_infer_response(r, true)), false});
                         }};
      core_.infer(model, std::move(parsed.request), std::move(sink));
    } catch (const base::Error& e) {
      put_error(e, id);
    } catch (const std::exception& e) {
      put_error(base::Error(base::ErrorCode::internal, e.what()), id);
    }
  }

  void put_error(const base::Error& e, const std::string& id) {
    if (ends_on_error_) {
      is_cancelled_ = true;  // nobody will hear of the others
      put({{}, false, true, grpc_status(e)});
      return answered();
    }
    std::vector<HttpBodyPart> parts;
    parts.emplace_back(grpc_stream_error(e.message(), id));
    put({buffer_of(std::move(parts))});
  }

  /// Queues a write; whoever finds nothing pending starts it.
  void put(Item item) {
    queue_.with([&](std::deque<Item>& q) { q.push_back(std::move(item)); });
    if (pending_.fetch_add(1) == 0) pump(1);
  }
  /// Starts the next write; the caller owns the right to. After the end nothing is written, and the right is
  /// kept.
  void pump(int pending) {
    if (pending == 0 || is_finished_) return;
    std::optional<Item> item;
    queue_.with([&](std::deque<Item>& q) {
      base::check(!q.empty(), "a pending write is in the queue");
      item = std::move(q.front());
      q.pop_front();
    });
    if (item->is_end) {
      is_finished_ = true;
      return Finish(item->status);
    }
    ends_request_ = item->ends_request;
    writing_ = std::move(item->message);
    StartWrite(&writing_);
  }
  /// A request has been answered.
  void answered() {
    const int before = open_.fetch_sub(1);
    if (before == 1) return put({{}, false, true, grpc::Status::OK});
    if (before == kMostOpen + 1 && !is_finished_) StartRead(&message_);
  }
  /// The client's side has ended.
  void leave() {
    if (open_.fetch_sub(1) == 1) put({{}, false, true, grpc::Status::OK});
  }

  KserveCore& core_;
  grpc::CallbackServerContext* context_;
  std::shared_ptr<StreamInfer> self_;  ///< until OnDone
  bool ends_on_error_ = false;
  ByteBuffer message_, writing_;
  bool ends_request_ = false;    ///< of what is being written
  std::atomic<int> open_{1};     ///< unanswered requests, and one for the client's side
  std::atomic<int> pending_{0};  ///< writes queued or on their way
  std::atomic<bool> is_cancelled_{false}, is_finished_{false};
  base::Guarded<std::deque<Item>> queue_;
};

}  // namespace

grpc::Status grpc_status(const base::Error& error) {
  const auto code = [&] {
    switch (error.code()) {
      case base::ErrorCode::invalid_argument: return grpc::StatusCode::INVALID_ARGUMENT;
      case base::ErrorCode::not_found: return grpc::StatusCode::NOT_FOUND;
      case base::ErrorCode::unsupported: return grpc::StatusCode::UNIMPLEMENTED;
      case base::ErrorCode::exhausted: return grpc::StatusCode::RESOURCE_EXHAUSTED;
      case base::ErrorCode::unavailable: return grpc::StatusCode::UNAVAILABLE;
      case base::ErrorCode::internal: break;
    }
    return grpc::StatusCode::INTERNAL;
  }();
  return {code, error.message()};
}

void require_access(const KserveCore& core, const grpc::CallbackServerContext& context, Category category) {
  const auto& metadata = context.client_metadata();
  const auto lookup = [&](const std::string& name) {
    auto at = metadata.find(name);
    if (at == metadata.end()) at = metadata.find("triton-grpc-protocol-" + name);
    return at == metadata.end() ? std::string_view() : std::string_view(at->second.data(), at->second.size());
  };
  if (core.rules().allows(category, lookup)) return;
  base::fail(base::ErrorCode::unavailable, "This protocol is restricted: ", AccessRules::name(category),
             " calls need the metadata that the server was started with");
}

grpc::ServerUnaryReactor* grpc_infer(KserveCore& core, grpc::CallbackServerContext* context,
                                     const ByteBuffer* request, ByteBuffer* response) {
  auto* reactor = new UnaryInfer(core, response);  // deletes itself in OnDone
  reactor->start(*context, *request);
  return reactor;
}

grpc::ServerBidiReactor<ByteBuffer, ByteBuffer>* grpc_stream_infer(KserveCore& core,
                                                                   grpc::CallbackServerContext* context) {
  auto reactor = std::make_shared<StreamInfer>(core, context);
  StreamInfer* raw = reactor.get();
  raw->start(std::move(reactor));
  return raw;
}

}  // namespace trireme::serve
#endif
