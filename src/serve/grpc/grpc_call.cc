// gRPC over HTTP/2: requests' fields, length-prefixed messages, compression, deadlines, statuses in trailers.
#include "serve/grpc/grpc_call.h"

#include <algorithm>
#include <array>
#include <climits>
#include <new>
#include <utility>

#include "base/text/shortened.h"
#include "http/loop.h"

namespace trireme::serve {
namespace {

constexpr size_t kMaxMessageBytes = INT_MAX;         // of what protobuf can read
constexpr size_t kReservedBytes = size_t{16} << 20;  // on a client's word alone; more as the bytes come
constexpr size_t kAlignedBytes = 4096;               // tensors of smaller messages are copied
constexpr size_t kCompressedBytes = 1400;            // smaller messages are sent as they are
constexpr size_t kPrefixBytes = 5;
constexpr size_t kUnreadBytes = size_t{4} << 20;  // of answers; with more, no further message is taken
constexpr uint32_t kInternalError = 2;            // of HTTP/2
constexpr int64_t kMostTimeoutNs = int64_t{365} * 24 * 3'600'000'000'000;  // longer is as good as none

constexpr std::array<http::Http2Field, 3> kHeads = {{{":status", "200"},
                                                     {"content-type", "application/grpc"},
                                                     {"grpc-accept-encoding", "identity, deflate, gzip"}}};

std::array<char, kPrefixBytes> prefix_of(bool is_compressed, size_t bytes) {
  const auto byte = [bytes](int shift) { return static_cast<char>(bytes >> shift & 0xff); };
  return {static_cast<char>(is_compressed), byte(24), byte(16), byte(8), byte(0)};
}

std::string_view name_of(http::Coding coding) {
  return coding == http::Coding::gzip ? "gzip" : coding == http::Coding::deflate ? "deflate" : "identity";
}

std::optional<http::Coding> coding_of(std::string_view name) {
  if (name.empty() || name == "identity") return http::Coding::identity;
  if (name == "gzip") return http::Coding::gzip;
  if (name == "deflate") return http::Coding::deflate;
  return {};
}

bool is_grpc(std::string_view content_type) {
  constexpr std::string_view kType = "application/grpc";
  if (content_type.substr(0, kType.size()) != kType) return false;
  return content_type.size() == kType.size() || content_type[kType.size()] == '+' ||
         content_type[kType.size()] == ';';
}

size_t bytes_of(const std::vector<http::BodyPart>& parts) {
  size_t bytes = 0;
  for (const http::BodyPart& p : parts) bytes += p.bytes().size();
  return bytes;
}

}  // namespace

/// What an answering thread wants sent.
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
      session_(&session),
      mailbox_(std::move(mailbox)),
      max_message_bytes_(std::min(max_message_bytes, kMaxMessageBytes)),
      is_local_(is_local) {}

std::string_view GrpcCall::field(std::string_view name) const {
  const std::string_view text = text_;
  for (const Field& f : fields_) {
    if (f.name_bytes == name.size() && text.substr(f.at, f.name_bytes) == name)
      return text.substr(f.at + f.name_bytes, f.value_bytes);
  }
  return {};
}

void GrpcCall::on_field(std::string_view name, std::string_view value) {
  if (fields_.empty()) {
    fields_.reserve(12);
    text_.reserve(256);
  }
  fields_.push_back({static_cast<uint32_t>(text_.size()), static_cast<uint32_t>(name.size()),
                     static_cast<uint32_t>(value.size())});
  text_.append(name).append(value);
}

/// Calls the handler; what it throws ends the call.
template <class Use>
void GrpcCall::guarded(const Use& use) {
  try {
    use();
  } catch (const base::Error& e) {
    finish(grpc_status(e));
  } catch (const std::bad_alloc&) {
    finish({GrpcCode::resource_exhausted, "out of memory while reading the request"});
  } catch (const std::exception& e) {
    finish({GrpcCode::internal, e.what()});
  }
}

void GrpcCall::on_fields_end(bool fits) {
  if (!fits) return finish({GrpcCode::resource_exhausted, "the request's metadata is too large"});
  if (!accept()) return;
  guarded([&] {
    handler_ = routes_.open(shared_from_this());
    if (handler_ == nullptr) finish({GrpcCode::unimplemented, base::concat("there is no method ", path())});
  });
}

/// Looks at what all calls have in common; false if that was answered.
bool GrpcCall::accept() {
  const auto refuse = [&](std::string_view http_status) {
    const std::array<http::Http2Field, 1> head = {{{":status", http_status}}};
    is_finished_ = true;
    session_->respond(*this, head, true);
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
  if (const auto known = coding_of(coding)) {
    coding_ = *known;
    choose_answer_coding();
    return true;
  }
  finish({GrpcCode::unimplemented, base::concat("grpc-encoding is not supported: ", coding)});
  return false;
}

/// Answers are compressed as the questions are, unless the client says what it reads and that is not among
/// it.
void GrpcCall::choose_answer_coding() {
  const std::string_view list = field("grpc-accept-encoding");
  const std::string_view name = name_of(coding_);
  bool is_read = list.empty();
  for (size_t at = 0; !is_read && at < list.size();) {
    const size_t end = std::min(list.find(',', at), list.size());
    std::string_view one = list.substr(at, end - at);
    while (!one.empty() && one.front() == ' ') one.remove_prefix(1);
    while (!one.empty() && one.back() == ' ') one.remove_suffix(1);
    is_read = one == name;
    at = end + 1;
  }
  if (is_read) answer_coding_ = coding_;
}

std::span<char> GrpcCall::room() {
  if (prefix_bytes_ < kPrefixBytes || is_finished_ || is_held_) return {};
  const size_t end = std::min(message_.capacity(), message_bytes_);
  return {message_.data() + message_.size(), end - std::min(end, message_.size())};
}

void GrpcCall::on_data(std::string_view bytes) {
  guarded([&] {
    if (is_held_) {
      backlog_.append(bytes);
    } else {
      read(bytes);
    }
  });
}

void GrpcCall::read(std::string_view bytes) {
  while (!bytes.empty() && !is_finished_) {
    if (is_held_) return backlog_.append(bytes);
    if (prefix_bytes_ < kPrefixBytes) {
      const size_t step = std::min(kPrefixBytes - prefix_bytes_, bytes.size());
      std::copy_n(bytes.data(), step, prefix_.data() + prefix_bytes_);
      prefix_bytes_ += step;
      bytes.remove_prefix(step);
      if (prefix_bytes_ < kPrefixBytes) return;
      begin_message(bytes);
    } else {
      const size_t step = std::min(message_bytes_ - message_.size(), bytes.size());
      if (bytes.data() == message_.data() + message_.size() &&
          message_.size() + step <= message_.capacity()) {
        message_.set_size(message_.size() + step);  // received in place
      } else {
        message_.append(bytes.substr(0, step));
      }
      bytes.remove_prefix(step);
    }
    if (!is_finished_ && message_.size() == message_bytes_) take_message();
  }
}

void GrpcCall::hold(bool on) {
  handler_holds_ = on;
  update_hold();
}

/// Both the handler and a client that does not read its answers hold the call.
void GrpcCall::update_hold() {
  const bool on = handler_holds_ || is_unread_;
  if (session_ == nullptr || on == is_held_) return;
  is_held_ = on;
  if (on) return session_->hold(*this, true);
  const http::Bytes kept = std::exchange(backlog_, http::Bytes());
  guarded([&] { read(kept.view()); });
  if (is_held_ || session_ == nullptr) return;  // again
  session_->hold(*this, false);
  if (has_ended_) on_end();
}

void GrpcCall::begin_message(std::string_view rest) {
  const auto byte = [&](size_t i) { return static_cast<size_t>(static_cast<unsigned char>(prefix_[i])); };
  message_bytes_ = byte(1) << 24 | byte(2) << 16 | byte(3) << 8 | byte(4);
  base::require(byte(0) <= 1, "malformed message: unknown flags ", byte(0));
  base::require(byte(0) == 0 || coding_ != http::Coding::identity,
                "malformed message: it is compressed, and the call names no grpc-encoding");
  if (message_bytes_ > most_bytes())
    base::fail(base::ErrorCode::exhausted, "message of ", message_bytes_, " bytes exceeds the limit of ",
               most_bytes());
  message_ = http::Bytes();
  if (message_bytes_ >= kAlignedBytes && byte(0) == 0) message_.align_at(handler_->aligned_at(rest));
  message_.reserve(std::min(message_bytes_, kReservedBytes));
}

size_t GrpcCall::most_bytes() const { return std::min(max_message_bytes_, handler_->most_bytes()); }

void GrpcCall::take_message() {
  http::Bytes message = std::move(message_);
  message_ = http::Bytes();
  prefix_bytes_ = 0;
  if (prefix_[0] != 0) message = http::inflate_body(message.view(), most_bytes());
  handler_->on_message(std::move(message));
}

void GrpcCall::on_end() {
  has_ended_ = true;
  if (is_finished_ || is_held_) return;
  if (prefix_bytes_ > 0) return finish({GrpcCode::internal, "malformed message: the stream ends within it"});
  guarded([&] { handler_->on_end(); });
}

void GrpcCall::cancel() {
  is_cancelled_.store(true, std::memory_order_relaxed);
  if (handler_) handler_->on_cancel();
}

void GrpcCall::on_close() {
  if (!is_finished_) cancel();
  is_finished_ = true;
  session_ = nullptr;
  handler_.reset();
  message_ = http::Bytes();
}

void GrpcCall::on_tick(int64_t now_ns) {
  if (is_finished_) return;
  if (deadline_ns_ != 0 && now_ns >= deadline_ns_) {
    cancel();
    finish({GrpcCode::deadline_exceeded, "Deadline Exceeded"});
  } else if (prefix_bytes_ > 0 && !is_held_ && session_->is_silent(now_ns)) {
    cancel();
    finish({GrpcCode::deadline_exceeded, "the rest of a message has not come"});
  } else if (handler_) {
    guarded([&] { handler_->on_tick(); });
  }
}

void GrpcCall::on_drain() {
  if (!is_finished_ && handler_) handler_->on_drain();
}

void GrpcCall::on_sent(uint64_t bytes) {
  left_bytes_ = bytes;
  while (!counted_.empty() && counted_.front() <= bytes) {
    counted_.pop_front();
    if (handler_ && !is_finished_) handler_->on_sent();
  }
  if (!is_unread_ || put_bytes_ - left_bytes_ > kUnreadBytes / 2) return;
  is_unread_ = false;
  update_hold();
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

void GrpcCall::post(Step&& step) {
  try {
    hand_over(std::move(step));
  } catch (const std::bad_alloc&) {
    give_up();
  }
}

/// Once for a call; needs no memory.
void GrpcCall::give_up() {
  if (is_given_up_.exchange(true)) return;
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

/// The call, and this mail with it, may end here.
void GrpcCall::ResetMail::discard() { const std::shared_ptr<GrpcCall> kept = std::move(call); }

void GrpcCall::reset() {
  is_finished_ = true;
  if (session_ != nullptr) session_->reset(*this, kInternalError);
}

/// Compression is paid by the calling thread; the rest is done at once on the connection's thread, else by
/// mail.
void GrpcCall::hand_over(Step&& step) {
  if (step.has_message) {
    const size_t bytes = bytes_of(step.message);
    const bool is_compressed = answer_coding_ != http::Coding::identity && bytes >= kCompressedBytes;
    if (is_compressed) {
      std::string whole;
      for (const http::BodyPart& p : step.message) whole += p.bytes();
      step.message.clear();
      step.message.emplace_back(http::deflate_body(whole, answer_coding_));
    }
    const auto prefix = prefix_of(is_compressed, bytes_of(step.message));
    step.message.insert(step.message.begin(), http::BodyPart(std::string(prefix.data(), prefix.size())));
  }
  if (mailbox_->owner.load(std::memory_order_relaxed) == std::this_thread::get_id())
    return carry_out(std::move(step));
  auto* mail = new StepMail;
  mail->call = shared_from_this();
  mail->step = std::move(step);
  // The mailbox outlives the post even if the loop drops the call meanwhile.
  const std::shared_ptr<http::Mailbox> mailbox = mailbox_;
  mailbox->post(mail);
}

/// Where there is no memory for it, the stream is reset.
void GrpcCall::carry_out(Step&& step) {
  try {
    apply(std::move(step));
  } catch (const std::exception&) {
    reset();
  }
}

void GrpcCall::apply(Step&& step) {
  if (is_finished_ || session_ == nullptr) return;
  if (step.has_message) put(std::move(step.message));
  if (!step.is_end && put_bytes_ - left_bytes_ > kUnreadBytes) {
    is_unread_ = true;
    update_hold();
  }
  if (step.is_counted) {
    counted_.push_back(put_bytes_);
    on_sent(left_bytes_);
  }
  if (step.is_end) end(step.status, std::move(step.trailers));
}

void GrpcCall::put(std::vector<http::BodyPart>&& message) {
  if (!has_answered_) {
    has_answered_ = true;
    std::array<http::Http2Field, kHeads.size() + 1> fields;
    std::copy(kHeads.begin(), kHeads.end(), fields.begin());
    fields.back() = {"grpc-encoding", name_of(answer_coding_)};
    const size_t count = answer_coding_ == http::Coding::identity ? kHeads.size() : fields.size();
    session_->respond(*this, std::span<const http::Http2Field>(fields.data(), count), false);
  }
  put_bytes_ += bytes_of(message);
  for (http::BodyPart& part : message) session_->write(*this, std::move(part));
}

/// Without a message before it the status is the whole answer. What is refused because its time is over has
/// its deadline as the reason, not the server: a client would try again elsewhere.
void GrpcCall::end(const GrpcStatus& status, http::Http2Fields&& trailers) {
  is_finished_ = true;
  const bool is_late =
      deadline_ns_ != 0 && status.code == GrpcCode::unavailable && http::steady_ns() >= deadline_ns_;
  const GrpcCode code = is_late ? GrpcCode::deadline_exceeded : status.code;
  trailers.emplace(trailers.begin(), "grpc-status", std::to_string(static_cast<int>(code)));
  if (!status.message.empty())
    trailers.emplace_back("grpc-message", grpc_percent_encode(base::shortened(status.message)));
  if (has_answered_) return session_->finish(*this, std::move(trailers));
  std::vector<http::Http2Field> fields(kHeads.begin(), kHeads.end());
  for (const auto& [name, value] : trailers) fields.emplace_back(name, value);
  session_->respond(*this, fields, true);
}

}  // namespace trireme::serve
