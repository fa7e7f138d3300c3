// gRPC over HTTP/2: requests' fields, length-prefixed messages, compression, deadlines, statuses in trailers.
#include "serve/grpc_call.h"

#include <algorithm>
#include <array>
#include <climits>
#include <new>
#include <utility>

#include "serve/http_loop.h"

namespace trireme::serve {
namespace {

constexpr size_t kMaxMessageBytes = INT_MAX;         // as Triton: clients lift their own limits to it too
constexpr size_t kReservedBytes = size_t{16} << 20;  // on a client's word alone; more as the bytes come
constexpr size_t kAlignedBytes = 4096;               // tensors of smaller messages are copied
constexpr size_t kCompressedBytes = 1400;            // smaller messages are sent as they are
constexpr size_t kPrefixBytes = 5;
constexpr int64_t kMostTimeoutNs = int64_t{365} * 24 * 3'600'000'000'000;  // longer is as good as none

constexpr std::array<Http2Field, 3> kHeads = {{{":status", "200"},
                                               {"content-type", "application/grpc"},
                                               {"grpc-accept-encoding", "identity, deflate, gzip"}}};

std::array<char, kPrefixBytes> prefix_of(bool is_compressed, size_t bytes) {
  const auto byte = [bytes](int shift) { return static_cast<char>(bytes >> shift & 0xff); };
  return {static_cast<char>(is_compressed), byte(24), byte(16), byte(8), byte(0)};
}

std::string_view name_of(HttpCoding coding) {
  return coding == HttpCoding::gzip ? "gzip" : coding == HttpCoding::deflate ? "deflate" : "identity";
}

std::optional<HttpCoding> coding_of(std::string_view name) {
  if (name.empty() || name == "identity") return HttpCoding::identity;
  if (name == "gzip") return HttpCoding::gzip;
  if (name == "deflate") return HttpCoding::deflate;
  return {};
}

bool is_grpc(std::string_view content_type) {
  constexpr std::string_view kType = "application/grpc";
  if (content_type.substr(0, kType.size()) != kType) return false;
  return content_type.size() == kType.size() || content_type[kType.size()] == '+' ||
         content_type[kType.size()] == ';';
}

size_t bytes_of(const std::vector<HttpBodyPart>& parts) {
  size_t bytes = 0;
  for (const HttpBodyPart& p : parts) bytes += p.bytes().size();
  return bytes;
}

}  // namespace

/// What an answering thread wants sent.
struct GrpcCall::Step {
  std::vector<HttpBodyPart> message;
  Http2Fields trailers;
  GrpcStatus status;
  bool has_message = false, is_counted = false, is_end = false;
};

struct GrpcCall::StepMail final : HttpMail {
  std::shared_ptr<GrpcCall> call;
  Step step;
  void deliver() override {
    call->apply(std::move(step));
    delete this;
  }
  void discard() override { delete this; }
};

GrpcCall::GrpcCall(GrpcRoutes& routes, Http2Session& session, std::shared_ptr<HttpMailbox> mailbox)
    : routes_(routes), session_(&session), mailbox_(std::move(mailbox)) {}

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
    const std::array<Http2Field, 1> head = {{{":status", http_status}}};
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
    if (left_ns < kMostTimeoutNs) deadline_ns_ = http_steady_ns() + left_ns;
  }
  const std::string_view coding = field("grpc-encoding");
  if (const auto known = coding_of(coding)) {
    coding_ = *known;
    return true;
  }
  finish({GrpcCode::unimplemented, base::concat("grpc-encoding is not supported: ", coding)});
  return false;
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
  if (session_ == nullptr || on == is_held_) return;
  is_held_ = on;
  if (on) return session_->hold(*this, true);
  const HttpBytes kept = std::exchange(backlog_, HttpBytes());
  guarded([&] { read(kept.view()); });
  if (is_held_ || session_ == nullptr) return;  // again
  session_->hold(*this, false);
  if (has_ended_) on_end();
}

void GrpcCall::begin_message(std::string_view rest) {
  const auto byte = [&](size_t i) { return static_cast<size_t>(static_cast<unsigned char>(prefix_[i])); };
  message_bytes_ = byte(1) << 24 | byte(2) << 16 | byte(3) << 8 | byte(4);
  base::require(byte(0) <= 1, "malformed message: unknown flags ", byte(0));
  base::require(byte(0) == 0 || coding_ != HttpCoding::identity,
                "malformed message: it is compressed, and the call names no grpc-encoding");
  if (message_bytes_ > kMaxMessageBytes)
    base::fail(base::ErrorCode::exhausted, "message of ", message_bytes_, " bytes exceeds the limit of ",
               kMaxMessageBytes);
  message_ = HttpBytes();
  if (message_bytes_ >= kAlignedBytes && byte(0) == 0) message_.align_at(handler_->aligned_at(rest));
  message_.reserve(std::min(message_bytes_, kReservedBytes));
}

void GrpcCall::take_message() {
  HttpBytes message = std::move(message_);
  message_ = HttpBytes();
  prefix_bytes_ = 0;
  if (prefix_[0] != 0) message = http_inflate(message.view(), kMaxMessageBytes);
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
  message_ = HttpBytes();
}

void GrpcCall::on_tick(int64_t now_ns) {
  if (is_finished_ || deadline_ns_ == 0 || now_ns < deadline_ns_) return;
  cancel();
  finish({GrpcCode::deadline_exceeded, "Deadline Exceeded"});
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
}

void GrpcCall::send(std::vector<HttpBodyPart> message) {
  post({.message = std::move(message), .has_message = true});
}

void GrpcCall::count() { post({.is_counted = true}); }

void GrpcCall::finish(GrpcStatus status, Http2Fields trailers) {
  post({.trailers = std::move(trailers), .status = std::move(status), .is_end = true});
}

void GrpcCall::answer(std::vector<HttpBodyPart> message, Http2Fields trailers) {
  post({.message = std::move(message), .trailers = std::move(trailers), .has_message = true, .is_end = true});
}

/// Compression is paid by the calling thread; the rest is done at once on the connection's thread, else by
/// mail.
void GrpcCall::post(Step&& step) {
  if (step.has_message) {
    const size_t bytes = bytes_of(step.message);
    const bool is_compressed = coding_ != HttpCoding::identity && bytes >= kCompressedBytes;
    if (is_compressed) {
      std::string whole;
      for (const HttpBodyPart& p : step.message) whole += p.bytes();
      step.message.clear();
      step.message.emplace_back(http_deflate(whole, coding_));
    }
    const auto prefix = prefix_of(is_compressed, bytes_of(step.message));
    step.message.insert(step.message.begin(), HttpBodyPart(std::string(prefix.data(), prefix.size())));
  }
  if (mailbox_->owner.load(std::memory_order_relaxed) == std::this_thread::get_id())
    return apply(std::move(step));
  auto* mail = new StepMail;
  mail->call = shared_from_this();
  mail->step = std::move(step);
  // The mailbox outlives the post even if the loop drops the call meanwhile.
  const std::shared_ptr<HttpMailbox> mailbox = mailbox_;
  mailbox->post(mail);
}

void GrpcCall::apply(Step&& step) {
  if (is_finished_ || session_ == nullptr) return;
  if (step.has_message) put(std::move(step.message));
  if (step.is_counted) {
    counted_.push_back(put_bytes_);
    on_sent(left_bytes_);
  }
  if (step.is_end) end(step.status, std::move(step.trailers));
}

void GrpcCall::put(std::vector<HttpBodyPart>&& message) {
  if (!has_answered_) {
    has_answered_ = true;
    std::array<Http2Field, kHeads.size() + 1> fields;
    std::copy(kHeads.begin(), kHeads.end(), fields.begin());
    fields.back() = {"grpc-encoding", name_of(coding_)};
    const size_t count = coding_ == HttpCoding::identity ? kHeads.size() : fields.size();
    session_->respond(*this, std::span<const Http2Field>(fields.data(), count), false);
  }
  put_bytes_ += bytes_of(message);
  for (HttpBodyPart& part : message) session_->write(*this, std::move(part));
}

/// Without a message before it the status is the whole answer.
void GrpcCall::end(const GrpcStatus& status, Http2Fields&& trailers) {
  is_finished_ = true;
  trailers.emplace(trailers.begin(), "grpc-status", std::to_string(static_cast<int>(status.code)));
  if (!status.message.empty()) trailers.emplace_back("grpc-message", grpc_percent_encode(status.message));
  if (has_answered_) return session_->finish(*this, std::move(trailers));
  std::vector<Http2Field> fields(kHeads.begin(), kHeads.end());
  for (const auto& [name, value] : trailers) fields.emplace_back(name, value);
  session_->respond(*this, fields, true);
}

}  // namespace trireme::serve
