// HTTP/2 streams: pass fields and bodies to the handlers and answers to nghttp2, within limits of cost.
#include "http/http2/http2_streams.h"

#include <algorithm>
#include <utility>

#include "http/http2/nghttp_session.h"
#include "http/socket.h"

namespace trireme::http {
namespace {

constexpr size_t kFieldOverhead = 32;  // RFC 9113, 6.5.2
constexpr size_t kHostileFactor = 4;   // beyond this multiple of their limit, fields are not even read

}  // namespace

void Http2Streams::begin(int32_t id, int64_t now_ns) {
  if (is_full()) return library_.reset(id, NGHTTP2_REFUSED_STREAM);
  std::shared_ptr<Http2Stream> stream = owner_.open_stream();
  stream->id_ = id;
  stream->opened_ns_ = now_ns;
  stream->at_ = streams_.size();
  library_.set_stream(id, stream.get());
  streams_.push_back(std::move(stream));
}

bool Http2Streams::add_field(Http2Stream& stream, std::string_view name, std::string_view value) {
  const size_t bytes = name.size() + value.size() + kFieldOverhead;
  stream.field_bytes_ += bytes;
  // One byte may refer to a field of 4 KiB. On false, nghttp2 resets the stream and only updates its table.
  if (stream.field_bytes_ > kHostileFactor * limits_.max_field_bytes) return false;
  if (stream.has_begun_ || stream.field_bytes_ > limits_.max_field_bytes) return true;
  if (!fields_.keep(bytes)) return false;
  stream.kept_field_bytes_ += bytes;
  stream.on_field(name, value);
  return true;
}

void Http2Streams::end_fields(Http2Stream& stream) {
  if (std::exchange(stream.has_begun_, true)) return;
  stream.on_fields_end(stream.field_bytes_ <= limits_.max_field_bytes);
}

void Http2Streams::add_data(Http2Stream& stream, std::string_view bytes) {
  stream.on_data(bytes);
  if (stream.is_held_) stream.held_bytes_ += bytes.size();
}

void Http2Streams::end(Http2Stream& stream) {
  stream.has_ended_ = true;
  stream.on_end();
}

void Http2Streams::forget(Http2Stream& stream) {
  const std::shared_ptr<Http2Stream> kept = streams_[stream.at_];
  streams_[stream.at_] = streams_.back();
  streams_[stream.at_]->at_ = stream.at_;
  streams_.pop_back();
  unsent_.drop(stream.answer_.drop());
  fields_.forget(stream.kept_field_bytes_);
  library_.set_stream(stream.id_, nullptr);
  stream.on_close();
}

void Http2Streams::cut() {
  while (!streams_.empty()) forget(*streams_.back());
}

void Http2Streams::respond(Http2Stream& stream, std::span<const Http2Field> fields, bool is_end) {
  library_.respond(stream.id_, fields, is_end ? nullptr : &stream);
  owner_.on_output();
}

void Http2Streams::write(Http2Stream& stream, BodyPart part) {
  const size_t bytes = part.bytes().size();
  if (bytes == 0) return;
  stream.answer_.put(std::move(part));
  unsent_.put(bytes);
  resume(stream);
}

void Http2Streams::finish(Http2Stream& stream, Http2Fields trailers) {
  stream.answer_.finish(std::move(trailers));
  resume(stream);
}

void Http2Streams::resume(Http2Stream& stream) {
  if (stream.answer_.take_deferred()) library_.resume(stream.id_);
  owner_.on_output();
}

void Http2Streams::reset(Http2Stream& stream, uint32_t code) {
  library_.reset(stream.id_, code);
  owner_.on_output();
}

void Http2Streams::hold(Http2Stream& stream, bool on) {
  stream.is_held_ = on;
  if (on || stream.held_bytes_ == 0 || library_.is_lost()) return;
  library_.consume_held(stream.id_, std::exchange(stream.held_bytes_, 0));
  owner_.on_output();
}

size_t Http2Streams::next_frame_bytes(Http2Stream& stream, size_t most, bool& is_last) {
  Http2Answer& answer = stream.answer_;
  const size_t waiting = answer.unsent().waiting_bytes(), bytes = std::min(most, waiting);
  is_last = bytes == waiting && answer.is_finished();
  if (bytes == 0 && !is_last) answer.defer();
  return bytes;
}

bool Http2Streams::submit_trailers(Http2Stream& stream) {
  const Http2Fields& trailers = stream.answer_.trailers();
  if (trailers.empty()) return false;
  library_.submit_trailers(stream.id_, trailers);
  return true;
}

void Http2Streams::send(Http2Stream& stream, size_t bytes, Output& out, bool copies) {
  unsent_.send(bytes);
  stream.answer_.send(bytes, out, copies);
  stream.on_sent(stream.answer_.unsent().sent_bytes());
}

/// Tells a client that is still sending to stop.
void Http2Streams::after_answer(Http2Stream& stream) {
  if (!stream.has_ended_) library_.reset(stream.id_, NGHTTP2_NO_ERROR);
}

bool Http2Streams::drop_slow(int64_t now_ns, int64_t quiet_ns) {
  const bool is_late = unsent_.is_late(limits_.reading, now_ns, library_.is_shut(0), quiet_ns);
  for (const auto& stream : streams_) {
    Http2Stream& s = *stream;
    if (!s.has_begun_ && now_ns > s.opened_ns_ + limits_.fields_ns) return false;
    Http2Unsent& unsent = s.answer_.unsent();
    const bool is_stream_late = unsent.is_late(limits_.reading, now_ns, library_.is_shut(s.id_), quiet_ns);
    if (is_stream_late || (is_late && unsent.waiting_bytes() > 0)) reset(s, NGHTTP2_CANCEL);
  }
  return true;
}

}  // namespace trireme::http
