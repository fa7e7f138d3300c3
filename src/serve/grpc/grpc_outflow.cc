// Messages that a gRPC call sends.
#include "serve/grpc/grpc_outflow.h"

#include <algorithm>
#include <array>
#include <span>
#include <string>
#include <utility>

#include "base/text/shortened.h"

namespace trireme::serve {
namespace {

constexpr size_t kPrefixBytes = 5;
constexpr size_t kCompressedBytes = 1400;         // smaller messages are not compressed
constexpr size_t kUnreadBytes = size_t{4} << 20;  // of answers; beyond this, no further message is accepted

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

size_t bytes_of(const std::vector<http::BodyPart>& parts) {
  size_t bytes = 0;
  for (const http::BodyPart& p : parts) bytes += p.bytes().size();
  return bytes;
}

}  // namespace

std::optional<http::Coding> grpc_coding(std::string_view name) {
  if (name.empty() || name == "identity") return http::Coding::identity;
  if (name == "gzip") return http::Coding::gzip;
  if (name == "deflate") return http::Coding::deflate;
  return {};
}

void GrpcOutflow::choose_coding(http::Coding of_questions, std::string_view accepted) {
  const std::string_view name = name_of(of_questions);
  bool is_read = accepted.empty();
  for (size_t at = 0; !is_read && at < accepted.size();) {
    const size_t end = std::min(accepted.find(',', at), accepted.size());
    std::string_view one = accepted.substr(at, end - at);
    while (!one.empty() && one.front() == ' ') one.remove_prefix(1);
    while (!one.empty() && one.back() == ' ') one.remove_suffix(1);
    is_read = one == name;
    at = end + 1;
  }
  if (is_read) coding_ = of_questions;
}

std::vector<http::BodyPart> GrpcOutflow::framed(std::vector<http::BodyPart> message) const {
  const size_t bytes = bytes_of(message);
  const bool is_compressed = coding_ != http::Coding::identity && bytes >= kCompressedBytes;
  if (is_compressed) {
    std::string whole;
    for (const http::BodyPart& p : message) whole += p.bytes();
    message.clear();
    message.emplace_back(http::deflate_body(whole, coding_));
  }
  const auto prefix = prefix_of(is_compressed, bytes_of(message));
  message.insert(message.begin(), http::BodyPart(std::string(prefix.data(), prefix.size())));
  return message;
}

void GrpcOutflow::put(http::Http2Streams& streams, http::Http2Stream& stream,
                      std::vector<http::BodyPart>&& framed) {
  if (!has_answered_) {
    has_answered_ = true;
    std::array<http::Http2Field, kHeads.size() + 1> fields;
    std::copy(kHeads.begin(), kHeads.end(), fields.begin());
    fields.back() = {"grpc-encoding", name_of(coding_)};
    const size_t count = coding_ == http::Coding::identity ? kHeads.size() : fields.size();
    streams.respond(stream, std::span<const http::Http2Field>(fields.data(), count), false);
  }
  put_bytes_ += bytes_of(framed);
  for (http::BodyPart& part : framed) streams.write(stream, std::move(part));
}

void GrpcOutflow::end(http::Http2Streams& streams, http::Http2Stream& stream, const GrpcStatus& status,
                      http::Http2Fields&& trailers) const {
  trailers.emplace(trailers.begin(), "grpc-status", std::to_string(static_cast<int>(status.code)));
  if (!status.message.empty())
    trailers.emplace_back("grpc-message", grpc_percent_encode(base::shortened(status.message)));
  if (has_answered_) return streams.finish(stream, std::move(trailers));
  std::vector<http::Http2Field> fields(kHeads.begin(), kHeads.end());
  for (const auto& [name, value] : trailers) fields.emplace_back(name, value);
  streams.respond(stream, fields, true);
}

size_t GrpcOutflow::leave(uint64_t bytes) {
  left_bytes_ = bytes;
  size_t passed = 0;
  for (; !marks_.empty() && marks_.front() <= bytes; ++passed) marks_.pop_front();
  return passed;
}

bool GrpcOutflow::look() {
  const bool was_unread = is_unread_;
  is_unread_ = put_bytes_ - left_bytes_ > (was_unread ? kUnreadBytes / 2 : kUnreadBytes);
  return is_unread_ != was_unread;
}

}  // namespace trireme::serve
