// Messages of a gRPC call as they arrive.
#include "serve/grpc/grpc_inflow.h"

#include <algorithm>
#include <climits>
#include <utility>

#include "base/error.h"

namespace trireme::serve {
namespace {

constexpr size_t kMaxMessageBytes = INT_MAX;  // limit of protobuf
constexpr size_t kAlignedBytes = 4096;        // tensors of smaller messages are copied

}  // namespace

GrpcInflow::GrpcInflow(size_t max_message_bytes)
    : max_message_bytes_(std::min(max_message_bytes, kMaxMessageBytes)) {}

std::span<char> GrpcInflow::room() {
  if (prefix_bytes_ < kPrefixBytes || is_held_) return {};
  const size_t end = std::min(message_.capacity(), message_bytes_);
  return {message_.data() + message_.size(), end - std::min(end, message_.size())};
}

bool GrpcInflow::is_late(const http::PaceLimits& limits, int64_t now_ns, bool owes_all) {
  const bool owes = !has_ended_ && (owes_all || is_within());
  owes ? sending_.look(limits, now_ns, received_bytes_, !is_held_) : sending_.rest();
  return sending_.is_late(now_ns);
}

void GrpcInflow::read(std::string_view bytes, GrpcHandler* handler, const bool& is_over) {
  while (!bytes.empty() && !is_over) {
    if (is_held_) return backlog_.append(bytes);
    if (prefix_bytes_ < kPrefixBytes) {
      const size_t step = std::min(kPrefixBytes - prefix_bytes_, bytes.size());
      std::copy_n(bytes.data(), step, prefix_.data() + prefix_bytes_);
      prefix_bytes_ += step;
      received_bytes_ += step;
      bytes.remove_prefix(step);
      if (prefix_bytes_ < kPrefixBytes) return;
      begin(bytes, *handler);
    } else {
      const size_t step = std::min(message_bytes_ - message_.size(), bytes.size());
      if (bytes.data() == message_.data() + message_.size() &&
          message_.size() + step <= message_.capacity()) {
        message_.set_size(message_.size() + step);  // received directly into the message
      } else {
        message_.make_room(step, message_bytes_);
        message_.append(bytes.substr(0, step));
      }
      received_bytes_ += step;
      bytes.remove_prefix(step);
    }
    if (!is_over && message_.size() == message_bytes_) take(*handler);
  }
}

void GrpcInflow::begin(std::string_view rest, GrpcHandler& handler) {
  const auto byte = [&](size_t i) { return static_cast<size_t>(static_cast<unsigned char>(prefix_[i])); };
  message_bytes_ = byte(1) << 24 | byte(2) << 16 | byte(3) << 8 | byte(4);
  base::require(byte(0) <= 1, "malformed message: unknown flags ", byte(0));
  base::require(byte(0) == 0 || coding_ != http::Coding::identity,
                "malformed message: it is compressed, and the call names no grpc-encoding");
  if (message_bytes_ > most_bytes(handler))
    base::fail(base::ErrorCode::exhausted, "message of ", message_bytes_, " bytes exceeds the limit of ",
               most_bytes(handler));
  message_ = http::Bytes();
  if (message_bytes_ >= kAlignedBytes && byte(0) == 0) message_.align_at(handler.aligned_at(rest));
  if (message_bytes_ > 0) message_.make_room(1, message_bytes_);
}

size_t GrpcInflow::most_bytes(const GrpcHandler& handler) const {
  return std::min(max_message_bytes_, handler.most_bytes());
}

void GrpcInflow::take(GrpcHandler& handler) {
  http::Bytes message = std::move(message_);
  message_ = http::Bytes();
  prefix_bytes_ = 0;
  if (prefix_[0] != 0) message = http::inflate_body(message.view(), most_bytes(handler));
  handler.on_message(std::move(message));
}

http::Bytes GrpcInflow::release() {
  is_held_ = false;
  return std::exchange(backlog_, http::Bytes());
}

}  // namespace trireme::serve
