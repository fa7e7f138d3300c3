// One gRPC call on an HTTP/2 stream: metadata and messages in, messages and a status out, from any thread.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "serve/grpc/grpc_status.h"
#include "http/http2_session.h"
#include "http/coding.h"
#include "http/exchange.h"

namespace trireme::serve {

class GrpcCall;

/// What answers one call. All calls come on the thread of the call's connection.
class GrpcHandler {
 public:
  virtual ~GrpcHandler() = default;
  /// Which byte of a message should lie on a cache line, by the message's first bytes.
  virtual size_t aligned_at(std::string_view /*begin*/) const { return 0; }
  /// Longest message that it takes; the listener's limit bounds it too.
  virtual size_t most_bytes() const { return SIZE_MAX; }
  virtual void on_message(http::Bytes&& message) = 0;
  /// The client has sent all its messages.
  virtual void on_end() = 0;
  /// The client has left, or the call's deadline has passed: no answer will arrive.
  virtual void on_cancel() {}
  /// What was sent before one count() has left.
  virtual void on_sent() {}
  /// The server is about to end.
  virtual void on_drain() {}
  /// Called now and then.
  virtual void on_tick() {}
};

/// Makes a call's handler, before any of its messages is read; null: there is no such method. Throws what it
/// refuses by.
class GrpcRoutes {
 public:
  virtual ~GrpcRoutes() = default;
  virtual std::unique_ptr<GrpcHandler> open(const std::shared_ptr<GrpcCall>& call) = 0;
};

/// The part that is the wire's. Held by the session while its stream is open and by whoever answers.
class GrpcCall final : public http::Http2Stream, public std::enable_shared_from_this<GrpcCall> {
 public:
  /// A message has at most `max_message_bytes`, as it is sent and when it is inflated.
  GrpcCall(GrpcRoutes& routes, http::Http2Session& session, std::shared_ptr<http::Mailbox> mailbox,
           size_t max_message_bytes, bool is_local = false);

  // From the handler's thread.
  std::string_view path() const { return field(":path"); }
  /// Value of one of the client's metadata; empty: it has none of that name.
  std::string_view field(std::string_view name) const;
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
  void choose_answer_coding();
  void update_hold();
  void begin_message(std::string_view rest);
  void take_message();
  size_t most_bytes() const;
  template <class Use>
  void guarded(const Use& use);
  void cancel();
  void post(Step&& step);
  void give_up();
  void reset();
  void hand_over(Step&& step);
  void carry_out(Step&& step);
  void apply(Step&& step);
  void put(std::vector<http::BodyPart>&& message);
  void read(std::string_view bytes);
  void end(const GrpcStatus& status, http::Http2Fields&& trailers);

  struct Field {
    uint32_t at, name_bytes, value_bytes;
  };
  GrpcRoutes& routes_;
  http::Http2Session* session_;  // null: the stream is closed
  const std::shared_ptr<http::Mailbox> mailbox_;
  const size_t max_message_bytes_;
  const bool is_local_;
  std::unique_ptr<GrpcHandler> handler_;
  std::string text_;
  std::vector<Field> fields_;
  int64_t deadline_ns_ = 0;
  http::Coding coding_ = http::Coding::identity;  // of the client's messages
  http::Coding answer_coding_ = http::Coding::identity;

  std::array<char, 5> prefix_{};
  size_t prefix_bytes_ = 0;   // 5: within a message
  size_t message_bytes_ = 0;  // of the message within
  http::Bytes message_;
  bool has_answered_ = false, is_finished_ = false;
  http::Bytes backlog_;  // received while held
  bool is_held_ = false, has_ended_ = false;
  bool handler_holds_ = false, is_unread_ = false;  // why it is held
  uint64_t put_bytes_ = 0, left_bytes_ = 0;
  std::deque<uint64_t> counted_;  // so many bytes must have left
  std::atomic<bool> is_cancelled_{false}, is_given_up_{false};
  ResetMail reset_mail_;
};

}  // namespace trireme::serve
