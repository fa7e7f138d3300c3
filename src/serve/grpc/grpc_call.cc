// gRPC over HTTP/2: request fields, length-prefixed messages, compression, deadlines, statuses in trailers.
#include "serve/grpc/grpc_call.h"

#include <array>
#include <new>
#include <utility>

#include "base/error.h"
#include "http/loop.h"

namespace trireme::serve {
namespace {

constexpr uint32_t kInternalError = 2;                                     // HTTP/2's INTERNAL_ERROR
constexpr int64_t kMostTimeoutNs = int64_t{365} * 24 * 3'600'000'000'000;  // a longer one is treated as none

bool is_grpc(std::string_view content_type) {
  constexpr std::string_view kType = "application/grpc";
  if (content_type.substr(0, kType.size()) != kType) return false;
  return content_type.size() == kType.size() || content_type[kType.size()] == '+' ||
         content_type[kType.size()] == ';';
}

/// Calls a handler; an exception ends the call with its status.
template <class Use>
void guarded(GrpcCall& call, const Use& use) {
  try {
    use();
  } catch (const base::Error& e) {
    call.finish(grpc_status(e));
  } catch (const std::bad_alloc&) {
    call.finish({GrpcCode::resource_exhausted, "out of memory while reading the request"});
  } catch (const std::exception& e) {
    call.finish({GrpcCode::internal, e.what()});
  }
}

}  // namespace

/// What an answering thread wants to send.
struct GrpcCall::Step {
  std::vector<http::BodyPart> message;
  http::Http2Fields trailers;
  GrpcStatus status;
  bool has_message = false, is_counted = false, is_end = false;
};

struct GrpcCall::StepMail final : http::Mail {
  std::shared_ptr<GrpcCall> call;
  Step step;
  void deliver() override {
    call->carry_out(std::move(step));
    delete this;
  }
  void discard() override { delete this; }
};

GrpcCall::GrpcCall(GrpcRoutes& routes, http::Http2Session& session, std::shared_ptr<http::Mailbox> mailbox,
                   size_t max_message_bytes, bool is_local)
    : routes_(routes),
      streams_(&session.streams()),
      mailbox_(std::move(mailbox)),
      is_local_(is_local),
      inflow_(max_message_bytes) {}

void GrpcCall::on_field(std::string_view name, std::string_view value) { metadata_.add(name, value); }

void GrpcCall::on_fields_end(bool fits) {
  if (!fits) return finish({GrpcCode::resource_exhausted, "the request's metadata is too large"});
  if (!accept()) return;
  guarded(*this, [&] {
    handler_ = routes_.open(shared_from_this());
    if (handler_ == nullptr)
      finish({GrpcCode::unimplemented, base::concat("there is no method ", field(":path"))});
  });
}

/// Checks what all calls have in common; returns false if that already ended the call.
bool GrpcCall::accept() {
  const auto refuse = [&](std::string_view http_status) {
    const std::array<http::Http2Field, 1> head = {{{":status", http_status}}};
    is_finished_ = true;
    streams_->respond(*this, head, true);
    return false;
  };
  if (field(":method") != "POST") return refuse("405");
  if (!is_grpc(field("content-type"))) return refuse("415");
  if (const std::string_view timeout = field("grpc-timeout"); !timeout.empty()) {
    const int64_t left_ns = grpc_timeout_ns(timeout);
    if (left_ns < 0) {
      finish({GrpcCode::internal, "grpc-timeout is no time"});
      return false;
    }
    if (left_ns == 0) {
      finish({GrpcCode::deadline_exceeded, "Deadline Exceeded"});
      return false;
    }
    if (left_ns < kMostTimeoutNs) deadline_ns_ = http::steady_ns() + left_ns;
  }
  const std::string_view coding = field("grpc-encoding");
  if (const auto known = grpc_coding(coding)) {
    inflow_.set_coding(*known);
    outflow_.choose_coding(*known, field("grpc-accept-encoding"));
    return true;
  }
  finish({GrpcCode::unimplemented, base::concat("grpc-encoding is not supported: ", coding)});
  return false;
}

std::span<char> GrpcCall::room() { return is_finished_ ? std::span<char>() : inflow_.room(); }

void GrpcCall::on_data(std::string_view bytes) {
  guarded(*this, [&] { inflow_.read(bytes, handler_.get(), is_finished_); });
}

void GrpcCall::hold(bool on) {
  inflow_.set_unwanted(on);
  update_hold();
}

/// The call is held by a handler that wants no messages, and by a client that does not read its answers.
void GrpcCall::update_hold() {
  const bool on = inflow_.is_unwanted() || outflow_.is_unread();
  if (streams_ == nullptr || on == inflow_.is_held()) return;
  if (on) {
    inflow_.hold();
    return streams_->hold(*this, true);
  }
  const http::Bytes kept = inflow_.release();
  guarded(*this, [&] { inflow_.read(kept.view(), handler_.get(), is_finished_); });
  if (inflow_.is_held() || streams_ == nullptr) return;  // held again by the handler
  streams_->hold(*this, false);
  if (inflow_.has_ended()) on_end();
}

void GrpcCall::on_end() {
  inflow_.end();
  if (is_finished_ || inflow_.is_held()) return;
  if (inflow_.is_within())
    return finish({GrpcCode::internal, "malformed message: the stream ends within it"});
  guarded(*this, [&] { handler_->on_end(); });
}

void GrpcCall::cancel() {
  is_cancelled_.store(true, std::memory_order_relaxed);
  if (handler_) handler_->on_cancel();
}

void GrpcCall::on_close() {
  if (!is_finished_) cancel();
  is_finished_ = true;
  streams_ = nullptr;
  handler_.reset();
  inflow_.drop();
}

void GrpcCall::on_tick(int64_t now_ns) {
  if (is_finished_) return;
  if (deadline_ns_ != 0 && now_ns >= deadline_ns_) {
    cancel();
    finish({GrpcCode::deadline_exceeded, "Deadline Exceeded"});
  } else if (inflow_.is_late(streams_->limits().sending, now_ns, handler_ && handler_->takes_one())) {
    cancel();
    finish({GrpcCode::deadline_exceeded, "a message did not arrive in time"});
  } else if (handler_) {
    guarded(*this, [&] { handler_->on_tick(); });
  }
}

void GrpcCall::on_drain() {
  if (!is_finished_ && handler_) handler_->on_drain();
}

void GrpcCall::on_sent(uint64_t bytes) {
  for (size_t passed = outflow_.leave(bytes); passed > 0; --passed) {
    if (handler_ && !is_finished_) handler_->on_sent();
  }
  if (outflow_.is_unread() && outflow_.look()) update_hold();
}

void GrpcCall::send(std::vector<http::BodyPart> message) {
  post({.message = std::move(message), .has_message = true});
}

void GrpcCall::count() { post({.is_counted = true}); }

void GrpcCall::finish(GrpcStatus status, http::Http2Fields trailers) {
  post({.trailers = std::move(trailers), .status = std::move(status), .is_end = true});
}

void GrpcCall::answer(std::vector<http::BodyPart> message, http::Http2Fields trailers) {
  post({.message = std::move(message), .trailers = std::move(trailers), .has_message = true, .is_end = true});
}

/// The calling thread compresses the message. The rest is done at once on the connection's thread; other
/// threads post it.
void GrpcCall::post(Step&& step) {
  try {
    if (step.has_message) step.message = outflow_.framed(std::move(step.message));
    if (mailbox_->owner.load(std::memory_order_relaxed) == std::this_thread::get_id())
      return carry_out(std::move(step));
    auto* mail = new StepMail;
    mail->call = shared_from_this();
    mail->step = std::move(step);
    // The mailbox must outlive the post, even if the loop drops the call meanwhile.
    const std::shared_ptr<http::Mailbox> mailbox = mailbox_;
    mailbox->post(mail);
  } catch (const std::bad_alloc&) {
    give_up();
  }
}

/// At most once per call; needs no memory.
void GrpcCall::give_up() {
  if (reset_mail_.is_used.exchange(true)) return;
  if (mailbox_->owner.load(std::memory_order_relaxed) == std::this_thread::get_id()) {
    if (!is_finished_) reset();
    return;
  }
  reset_mail_.call = shared_from_this();
  const std::shared_ptr<http::Mailbox> mailbox = mailbox_;
  mailbox->post(&reset_mail_);
}

void GrpcCall::ResetMail::deliver() {
  const std::shared_ptr<GrpcCall> kept = std::move(call);
  if (!kept->is_finished_) kept->reset();
}

/// The call, and with it this mail, may be destroyed here.
void GrpcCall::ResetMail::discard() { const std::shared_ptr<GrpcCall> kept = std::move(call); }

void GrpcCall::reset() {
  is_finished_ = true;
  if (streams_ != nullptr) streams_->reset(*this, kInternalError);
}

/// Resets the stream if memory runs out. A refusal after the call's deadline is reported as DEADLINE_EXCEEDED
/// rather than UNAVAILABLE, for which a client would try again elsewhere.
void GrpcCall::carry_out(Step&& step) {
  if (is_finished_ || streams_ == nullptr) return;
  try {
    if (step.has_message) outflow_.put(*streams_, *this, std::move(step.message));
    if (!step.is_end && !outflow_.is_unread() && outflow_.look()) update_hold();
    if (step.is_counted) {
      outflow_.mark();
      on_sent(outflow_.left_bytes());
    }
    if (!step.is_end) return;
    is_finished_ = true;
    const bool is_late =
        deadline_ns_ != 0 && step.status.code == GrpcCode::unavailable && http::steady_ns() >= deadline_ns_;
    if (is_late) step.status.code = GrpcCode::deadline_exceeded;
    outflow_.end(*streams_, *this, step.status, std::move(step.trailers));
  } catch (const std::exception&) {
    reset();
  }
}

}  // namespace trireme::serve
