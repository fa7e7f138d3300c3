// Reading and parsing ahead on one connection.
#include "http/http1/http1_input.h"

#include <algorithm>
#include <span>
#include <utility>

namespace trireme::http {
namespace {

constexpr size_t kReadBytes = size_t{16} << 10;
constexpr size_t kLeastReadBytes = size_t{4} << 10;
constexpr size_t kMostDiscardedBytes = size_t{64} << 20;
constexpr int kDiscardsPerTurn = 32;

}  // namespace

// A head is parsed only when it is complete, so the buffer must hold a head up to the size limit.
Http1Input::Http1Input(Socket& socket, const Limits& limits)
    : socket_(socket),
      parser_(limits),
      most_ahead_bytes_(std::max(kReadBytes, limits.max_header_bytes + 1)) {}

bool Http1Input::has_room(bool takes_requests) const {
  return is_within_body() || received_.size() < (takes_requests ? most_ahead_bytes_ : kReadBytes);
}

Http1Input::Read Http1Input::read(bool takes_requests) {
  size_t missing = 0;
  char* body = received_.empty() && takes_requests ? parser_.body_tail(missing) : nullptr;
  if (body == nullptr) missing = 0;
  // One call reads the body and what follows it, so no second call is needed to see that nothing follows. If
  // a head arrives byte by byte, the buffer's remaining room is used as it is, to avoid one copy per byte.
  if (received_.capacity() - received_.size() < kLeastReadBytes)
    received_.reserve(std::max(received_.size() + kReadBytes, 2 * received_.size()));
  const std::span<char> rest(received_.data() + received_.size(), received_.capacity() - received_.size());
  const size_t room = missing + (socket_.is_tls() && missing > 0 ? 0 : rest.size());
  const ssize_t got = missing > 0 ? socket_.read(std::span<char>(body, missing), rest)
                                  : socket_.read(rest.data(), rest.size());
  if (got == Socket::kBroken) return Read::broken;
  if (got == Socket::kEof) return Read::end;
  if (got == Socket::kAgain) {
    readable_ = false;
    return Read::nothing;
  }
  const auto bytes = static_cast<size_t>(got);
  // A short read has emptied the socket. But if the peer hung up, the end of the stream is still to be read.
  if (bytes < room && !hung_up_ && !socket_.is_tls()) readable_ = false;
  if (missing > 0) parser_.body_filled(std::min(bytes, missing));
  if (bytes > missing) received_.set_size(received_.size() + bytes - missing);
  return Read::some;
}

Http1Input::Read Http1Input::discard() {
  received_.clear();
  used_ = 0;
  received_.reserve(kReadBytes);
  for (int reads = 0; readable_ && reads < kDiscardsPerTurn; ++reads) {
    const ssize_t got = socket_.read(received_.data(), received_.capacity());
    if (got == Socket::kAgain) {
      readable_ = false;
      return Read::nothing;
    }
    if (got > 0) discarded_bytes_ += static_cast<size_t>(got);
    if (got <= 0 || discarded_bytes_ > kMostDiscardedBytes) return Read::end;
  }
  return readable_ ? Read::some : Read::nothing;
}

Http1Input::Parsed Http1Input::parse(int64_t now_ns) {
  using State = RequestParser::State;
  const State before = parser_.state();
  if (begun_ns_ == 0 && !empty()) begun_ns_ = now_ns;
  const size_t step = parser_.feed(received_.view().substr(used_));
  used_ += step;
  if (before == State::head && is_within_body() && parser_.expects_continue()) continue_due_ = true;
  if (parser_.state() == State::failed) return Parsed::refused;
  if (parser_.state() == State::done) return Parsed::request;
  return step == 0 && parser_.state() == before ? Parsed::nothing : Parsed::part;
}

void Http1Input::compact() {
  if (used_ > 0) received_.erase_front(std::exchange(used_, 0));
}

Request Http1Input::take() {
  continue_due_ = false;
  Request request = parser_.take();
  request.begun_ns = std::exchange(begun_ns_, 0);
  return request;
}

void Http1Input::drop_request() {
  parser_.drop_body();
  continue_due_ = false;
}

void Http1Input::drop_received() {
  Bytes().swap(received_);
  used_ = 0;
}

bool Http1Input::take_continue() {
  return std::exchange(continue_due_, false) && is_within_body() && empty();
}

}  // namespace trireme::http
