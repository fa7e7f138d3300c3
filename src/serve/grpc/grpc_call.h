// One gRPC call on an HTTP/2 stream: metadata and messages in, messages and a status out, from any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "http/exchange.h"
#include "http/http2/http2_session.h"
#include "serve/grpc/grpc_handler.h"
#include "serve/grpc/grpc_inflow.h"
#include "serve/grpc/grpc_metadata.h"
#include "serve/grpc/grpc_outflow.h"
#include "serve/grpc/grpc_status.h"

namespace trireme::serve {

/// The part that is the wire's. Held by the session while its stream is open and by whoever answers.
class GrpcCall final : public http::Http2Stream, public std::enable_shared_from_this<GrpcCall> {
 public:
  /// A message has at most `max_message_bytes`, as it is sent and when it is inflated.
  GrpcCall(GrpcRoutes& routes, http::Http2Session& session, std::shared_ptr<http::Mailbox> mailbox,
           size_t max_message_bytes, bool is_local = false);

  // From the handler's thread.
  /// Value of one of the client's metadata, or of `:path`; empty: it has none of that name.
  std::string_view field(std::string_view name) const { return metadata_.find(name); }
  /// The peer has a loopback address.
  bool is_local() const { return is_local_; }
  /// When the caller gives up, on the steady clock; 0: never.
  int64_t deadline_ns() const { return deadline_ns_; }
  /// While held, the handler gets no messages; what the client sends fills its window and no more.
  void hold(bool on);

  // From any thread; after a finish() nothing is sent.
  void send(std::vector<http::BodyPart> message);
  /// The handler is told when all that was sent before has left.
  void count();
  void finish(GrpcStatus status, http::Http2Fields trailers = {});
  /// Both at once: the answer of a call that has one.
  void answer(std::vector<http::BodyPart> message, http::Http2Fields trailers = {});
  bool is_cancelled() const { return is_cancelled_.load(std::memory_order_relaxed); }

 private:
  struct Step;
  struct StepMail;
  /// Resets the stream of a call whose answer finds no memory: it has its place here, so it needs none.
  struct ResetMail final : http::Mail {
    std::shared_ptr<GrpcCall> call;
    std::atomic<bool> is_used{false};
    void deliver() override;
    void discard() override;
  };
  void on_field(std::string_view name, std::string_view value) override;
  void on_fields_end(bool fits) override;
  std::span<char> room() override;
  void on_data(std::string_view bytes) override;
  void on_end() override;
  void on_close() override;
  void on_sent(uint64_t bytes) override;
  void on_tick(int64_t now_ns) override;
  void on_drain() override;

  bool accept();
  void update_hold();
  void cancel();
  void post(Step&& step);
  void give_up();
  void reset();
  void carry_out(Step&& step);

  GrpcRoutes& routes_;
  http::Http2Streams* streams_;  // null: the stream is closed
  const std::shared_ptr<http::Mailbox> mailbox_;
  const bool is_local_;
  std::unique_ptr<GrpcHandler> handler_;
  GrpcMetadata metadata_;
  int64_t deadline_ns_ = 0;
  GrpcInflow inflow_;
  GrpcOutflow outflow_;
  bool is_finished_ = false;
  std::atomic<bool> is_cancelled_{false};
  ResetMail reset_mail_;
};

}  // namespace trireme::serve
