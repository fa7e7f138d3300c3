// HTTP/2 sessions on nghttp2: its callbacks, bodies received in place, answers sent from where they lie.
#include "http/http2/http2_session.h"

#include <nghttp2/nghttp2.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "base/error.h"
#include "http/http2/http2_library.h"
#include "http/socket.h"

namespace trireme::http {
namespace {

constexpr size_t kCopiedBytes = 4096;  // parts up to this are copied behind their frame's head
constexpr size_t kFrameBytes = 16384, kLongFrameBytes = size_t{256} << 10;  // of our frames
constexpr size_t kFieldOverhead = 32;                                       // RFC 9113, 6.5.2
constexpr size_t kHostileFactor = 4;  // fields so many times over their limit are not even looked at

std::string_view view_of(const uint8_t* bytes, size_t count) {
  return {reinterpret_cast<const char*>(bytes), count};
}

nghttp2_nv pair_of(std::string_view name, std::string_view value) {
  const auto bytes = [](std::string_view s) {
    return reinterpret_cast<uint8_t*>(const_cast<char*>(s.data()));
  };
  return {bytes(name), bytes(value), name.size(), value.size(), NGHTTP2_NV_FLAG_NONE};
}

}  // namespace

/// What nghttp2 calls; `user` is the session.
struct Http2Session::Callbacks {
  static Http2Session& self(void* user) { return *static_cast<Http2Session*>(user); }

  static int on_begin_headers(nghttp2_session*, const nghttp2_frame* frame, void* user) {
    if (frame->hd.type != NGHTTP2_HEADERS || frame->headers.cat != NGHTTP2_HCAT_REQUEST) return 0;
    Http2Session& s = self(user);
    s.has_preface_ = true;
    if (s.is_full()) {
      nghttp2_submit_rst_stream(s.session_, NGHTTP2_FLAG_NONE, frame->hd.stream_id, NGHTTP2_REFUSED_STREAM);
      return 0;
    }
    std::shared_ptr<Http2Stream> stream = s.owner_.open_stream();
    stream->id_ = frame->hd.stream_id;
    stream->opened_ns_ = s.now_ns_;
    stream->at_ = s.streams_.size();
    nghttp2_session_set_stream_user_data(s.session_, frame->hd.stream_id, stream.get());
    s.streams_.push_back(std::move(stream));
    return 0;
  }

  static int on_header(nghttp2_session*, const nghttp2_frame* frame, const uint8_t* name, size_t name_bytes,
                       const uint8_t* value, size_t value_bytes, uint8_t, void* user) {
    Http2Session& s = self(user);
    Http2Stream* stream = s.stream_of(frame->hd.stream_id);
    if (stream == nullptr) return 0;  // refused
    stream->field_bytes_ += name_bytes + value_bytes + kFieldOverhead;
    // A byte may name a field of 4 KiB: nghttp2 resets the stream and only keeps its table in step.
    if (stream->field_bytes_ > kHostileFactor * s.limits_.max_field_bytes)
      return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
    const bool is_trailer = stream->has_begun_;  // says nothing here
    if (is_trailer || stream->field_bytes_ > s.limits_.max_field_bytes) return 0;
    const size_t kept = name_bytes + value_bytes + kFieldOverhead;
    if (!s.fields_.keep(kept)) return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
    stream->kept_field_bytes_ += kept;
    stream->on_field(view_of(name, name_bytes), view_of(value, value_bytes));
    return 0;
  }

  static int on_frame(nghttp2_session*, const nghttp2_frame* frame, void* user) {
    Http2Session& s = self(user);
    s.has_preface_ = true;
    if (frame->hd.type == NGHTTP2_PING && (frame->hd.flags & NGHTTP2_FLAG_ACK) == 0) s.on_ping();
    if (frame->hd.type != NGHTTP2_HEADERS && frame->hd.type != NGHTTP2_DATA) return 0;
    Http2Stream* stream = s.stream_of(frame->hd.stream_id);
    if (stream == nullptr) return 0;
    if (frame->hd.type == NGHTTP2_HEADERS && !stream->has_begun_) {
      stream->has_begun_ = true;
      stream->on_fields_end(stream->field_bytes_ <= s.limits_.max_field_bytes);
    }
    if ((frame->hd.flags & NGHTTP2_FLAG_END_STREAM) != 0) {
      stream->has_ended_ = true;
      stream->on_end();
    }
    return 0;
  }

  static int on_data(nghttp2_session*, uint8_t, int32_t id, const uint8_t* data, size_t bytes, void* user) {
    Http2Session& s = self(user);
    Http2Stream* stream = s.stream_of(id);
    if (stream != nullptr) stream->on_data(view_of(data, bytes));
    if (stream != nullptr && stream->is_held_) stream->held_bytes_ += bytes;
    s.consume(id, bytes, stream != nullptr && stream->is_held_);
    return 0;
  }

  static int on_close(nghttp2_session*, int32_t id, uint32_t, void* user) {
    Http2Session& s = self(user);
    if (Http2Stream* stream = s.stream_of(id); stream != nullptr) s.forget(*stream);
    return 0;
  }

  /// After the last frame of an answer a client that still sends is told to stop.
  static int on_sent(nghttp2_session*, const nghttp2_frame* frame, void* user) {
    Http2Session& s = self(user);
    if (frame->hd.type != NGHTTP2_HEADERS && frame->hd.type != NGHTTP2_DATA) return 0;
    s.pings_.earn();
    if ((frame->hd.flags & NGHTTP2_FLAG_END_STREAM) == 0) return 0;
    const Http2Stream* stream = s.stream_of(frame->hd.stream_id);
    if (stream != nullptr && !stream->has_ended_)
      nghttp2_submit_rst_stream(s.session_, NGHTTP2_FLAG_NONE, frame->hd.stream_id, NGHTTP2_NO_ERROR);
    return 0;
  }

  static ssize_t read_body(nghttp2_session*, int32_t, uint8_t*, size_t most, uint32_t* flags,
                           nghttp2_data_source* source, void* user) {
    Http2Session& s = self(user);
    auto& stream = *static_cast<Http2Stream*>(source->ptr);
    const size_t bytes = std::min(most, stream.unsent_bytes_);
    if (bytes == 0 && !stream.is_finished_) {
      stream.is_deferred_ = true;
      return NGHTTP2_ERR_DEFERRED;
    }
    *flags |= NGHTTP2_DATA_FLAG_NO_COPY;
    if (bytes == stream.unsent_bytes_ && stream.is_finished_) {
      *flags |= NGHTTP2_DATA_FLAG_EOF;
      if (!stream.trailers_.empty()) {
        *flags |= NGHTTP2_DATA_FLAG_NO_END_STREAM;
        std::vector<nghttp2_nv> pairs;
        for (const auto& [name, value] : stream.trailers_) pairs.push_back(pair_of(name, value));
        nghttp2_submit_trailer(s.session_, stream.id_, pairs.data(), pairs.size());
      }
    }
    return static_cast<ssize_t>(bytes);
  }

  static int send_body(nghttp2_session*, nghttp2_frame*, const uint8_t* head, size_t bytes,
                       nghttp2_data_source* source, void* user) {
    self(user).emit(*static_cast<Http2Stream*>(source->ptr), head, bytes);
    return 0;
  }

  /// As long as the client takes them and there is something to fill them: the library's own limit is 16 KiB,
  /// and it makes room for what is said here.
  static ssize_t frame_bytes(nghttp2_session*, uint8_t, int32_t id, int32_t connection_left,
                             int32_t stream_left, uint32_t frame_left, void* user) {
    const Http2Stream* stream = self(user).stream_of(id);
    const size_t wanted =
        std::clamp(stream == nullptr ? 0 : stream->unsent_bytes_, kFrameBytes, kLongFrameBytes);
    return std::min(
        {int64_t{connection_left}, int64_t{stream_left}, int64_t{frame_left}, static_cast<int64_t>(wanted)});
  }

  static nghttp2_session_callbacks* make() {
    nghttp2_session_callbacks* to = nullptr;
    base::check(nghttp2_session_callbacks_new(&to) == 0, "out of memory for HTTP/2");
    nghttp2_session_callbacks_set_on_begin_headers_callback(
        to, Http2Callback<Http2Session, on_begin_headers>::call);
    nghttp2_session_callbacks_set_on_header_callback(to, Http2Callback<Http2Session, on_header>::call);
    nghttp2_session_callbacks_set_on_frame_recv_callback(to, Http2Callback<Http2Session, on_frame>::call);
    nghttp2_session_callbacks_set_on_data_chunk_recv_callback(to, Http2Callback<Http2Session, on_data>::call);
    nghttp2_session_callbacks_set_on_stream_close_callback(to, Http2Callback<Http2Session, on_close>::call);
    nghttp2_session_callbacks_set_on_frame_send_callback(to, Http2Callback<Http2Session, on_sent>::call);
    nghttp2_session_callbacks_set_send_data_callback(to, Http2Callback<Http2Session, send_body>::call);
    nghttp2_session_callbacks_set_data_source_read_length_callback(
        to, Http2Callback<Http2Session, frame_bytes>::call);
    return to;
  }
};

Http2Session::Http2Session(const Http2Limits& limits, Http2Owner& owner)
    : Http2Session(limits, owner, std::make_unique<Http2Memory>()) {}

Http2Session::Http2Session(const Http2Limits& limits, Http2Owner& owner, std::unique_ptr<Http2Memory> memory)
    : limits_(limits), owner_(owner), memory_(std::move(memory)) {
  nghttp2_option* option = nullptr;
  nghttp2_session_callbacks* callbacks = Callbacks::make();
  int failed = nghttp2_option_new(&option);
  if (failed == 0) {
    nghttp2_option_set_no_auto_window_update(option, 1);
    nghttp2_option_set_no_closed_streams(option, 1);
    nghttp2_option_set_stream_reset_rate_limit(option, limits.resets_at_once, limits.resets_per_second);
    failed = nghttp2_session_server_new3(&session_, callbacks, this, option, memory_->functions());
    nghttp2_option_del(option);
  }
  nghttp2_session_callbacks_del(callbacks);
  base::check(failed == 0, "HTTP/2 session cannot be made: ", nghttp2_strerror(failed));
  const std::array<nghttp2_settings_entry, 5> settings = {{
      {NGHTTP2_SETTINGS_MAX_CONCURRENT_STREAMS, limits.max_streams},
      {NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, limits.stream_window_bytes},
      {NGHTTP2_SETTINGS_MAX_FRAME_SIZE, limits.max_frame_bytes},
      {NGHTTP2_SETTINGS_MAX_HEADER_LIST_SIZE, limits.max_field_bytes},
      {NGHTTP2_SETTINGS_NO_RFC7540_PRIORITIES, 1},
  }};
  nghttp2_submit_settings(session_, NGHTTP2_FLAG_NONE, settings.data(), settings.size());
  nghttp2_session_set_local_window_size(session_, NGHTTP2_FLAG_NONE, 0, limits.connection_window_bytes);
}

Http2Session::~Http2Session() { cut_streams(); }

bool Http2Session::is_lost() const { return is_lost_ || memory_->has_failed(); }

void Http2Session::cut_streams() {
  while (!streams_.empty()) forget(*streams_.back());
}

Http2Stream* Http2Session::stream_of(int32_t id) const {
  return static_cast<Http2Stream*>(nghttp2_session_get_stream_user_data(session_, id));
}

void Http2Session::forget(Http2Stream& stream) {
  const std::shared_ptr<Http2Stream> kept = streams_[stream.at_];
  streams_[stream.at_] = streams_.back();
  streams_[stream.at_]->at_ = stream.at_;
  streams_.pop_back();
  unsent_bytes_ -= stream.unsent_bytes_;
  stream.unsent_.clear();
  fields_.forget(stream.kept_field_bytes_);
  if (!is_lost()) nghttp2_session_set_stream_user_data(session_, stream.id_, nullptr);
  stream.on_close();
}

bool Http2Session::feed(std::string_view bytes) {
  if (is_broken_ || is_lost()) return false;
  if (bytes.empty()) return true;
  place_.pass(bytes);
  const ssize_t used =
      nghttp2_session_mem_recv(session_, reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
  is_lost_ |= used < 0;
  return !is_broken_ && !is_lost();
}

bool Http2Session::receive(std::string_view bytes, int64_t now_ns) {
  now_ns_ = now_ns;
  const bool goes_on = feed(bytes);
  settle_windows();
  return goes_on;
}

/// Windows are opened once for all frames of a read.
void Http2Session::consume(int32_t id, size_t bytes, bool is_held) {
  if (id != consumed_id_) settle_windows();
  consumed_bytes_ += bytes;
  if (is_held) return;
  consumed_id_ = id;
  stream_consumed_bytes_ += bytes;
}

void Http2Session::settle_windows() {
  if (is_lost()) return;
  if (consumed_bytes_ > 0) nghttp2_session_consume_connection(session_, std::exchange(consumed_bytes_, 0));
  if (stream_consumed_bytes_ > 0)
    nghttp2_session_consume_stream(session_, consumed_id_, std::exchange(stream_consumed_bytes_, 0));
}

size_t Http2Session::scatter(std::span<iovec> views, std::span<char> spill) {
  views_.forget();
  if (is_broken_ || is_lost()) return 0;
  const int32_t id = place_.body_stream();
  Http2Stream* stream = id == 0 ? nullptr : stream_of(id);
  return stream == nullptr ? 0 : views_.plan(place_, stream->room(), views, spill);
}

bool Http2Session::receive_scattered(size_t bytes, int64_t now_ns) {
  now_ns_ = now_ns;
  const bool goes_on = views_.hand_on(place_, bytes, [this](std::string_view piece) { return feed(piece); });
  settle_windows();
  return goes_on;
}

size_t Http2Session::awaited_bytes() const {
  const int32_t id = place_.body_stream();
  Http2Stream* stream = id == 0 ? nullptr : stream_of(id);
  if (stream == nullptr) return 0;
  const auto left = [](int32_t window) { return static_cast<size_t>(std::max(window, 0)); };
  return std::min({stream->room().size(), left(nghttp2_session_get_stream_local_window_size(session_, id)),
                   left(nghttp2_session_get_local_window_size(session_))});
}

void Http2Session::send(Output& out, size_t most_bytes, bool copies) {
  out_ = &out;
  copies_ = copies;
  while (out.bytes() < most_bytes && !is_lost()) {
    const uint8_t* data = nullptr;
    const ssize_t bytes = nghttp2_session_mem_send(session_, &data);
    if (bytes < 0) is_lost_ = true;
    if (bytes <= 0) break;
    out.text().append(view_of(data, static_cast<size_t>(bytes)));
  }
  out_ = nullptr;
}

void Http2Session::emit(Http2Stream& stream, const uint8_t* head, size_t bytes) {
  out_->text().append(view_of(head, 9));
  stream.unsent_bytes_ -= bytes;
  unsent_bytes_ -= bytes;
  stream.sent_bytes_ += bytes;
  sent_bytes_ += bytes;
  while (bytes > 0) {
    BodyPart& part = stream.unsent_.front();
    const std::string_view rest = part.bytes().substr(stream.front_sent_);
    const std::string_view now = rest.substr(0, bytes);
    if (copies_ || now.size() <= kCopiedBytes) {
      out_->text().append(now);
    } else if (now.size() == part.bytes().size()) {
      out_->append(std::move(part));
    } else {
      out_->append(part.share(stream.front_sent_, now.size()));
    }
    bytes -= now.size();
    stream.front_sent_ += now.size();
    if (now.size() == rest.size()) {
      stream.unsent_.pop_front();
      stream.front_sent_ = 0;
    }
  }
  stream.on_sent(stream.sent_bytes_);
}

bool Http2Session::is_over() const {
  return is_broken_ || is_lost() ||
         (nghttp2_session_want_read(session_) == 0 && nghttp2_session_want_write(session_) == 0);
}

void Http2Session::respond(Http2Stream& stream, std::span<const Http2Field> fields, bool is_end) {
  std::array<nghttp2_nv, 16> pairs;
  base::check(fields.size() <= pairs.size(), "an HTTP/2 answer has too many fields: ", fields.size());
  for (size_t i = 0; i < fields.size(); ++i) pairs[i] = pair_of(fields[i].first, fields[i].second);
  nghttp2_data_provider body{};
  body.source.ptr = &stream;
  body.read_callback = Http2Callback<Http2Session, Callbacks::read_body>::call;
  if (!is_lost()) {
    is_lost_ |= nghttp2_is_fatal(nghttp2_submit_response(session_, stream.id_, pairs.data(), fields.size(),
                                                         is_end ? nullptr : &body)) != 0;
  }
  owner_.on_output();
}

void Http2Session::write(Http2Stream& stream, BodyPart part) {
  if (part.bytes().empty()) return;
  stream.unsent_bytes_ += part.bytes().size();
  unsent_bytes_ += part.bytes().size();
  stream.unsent_.push_back(std::move(part));
  resume(stream);
}

void Http2Session::finish(Http2Stream& stream, Http2Fields trailers) {
  stream.trailers_ = std::move(trailers);
  stream.is_finished_ = true;
  resume(stream);
}

void Http2Session::resume(Http2Stream& stream) {
  if (std::exchange(stream.is_deferred_, false) && !is_lost())
    nghttp2_session_resume_data(session_, stream.id_);
  owner_.on_output();
}

void Http2Session::reset(Http2Stream& stream, uint32_t code) {
  if (!is_lost()) is_lost_ |= nghttp2_submit_rst_stream(session_, NGHTTP2_FLAG_NONE, stream.id_, code) != 0;
  owner_.on_output();
}

void Http2Session::hold(Http2Stream& stream, bool on) {
  stream.is_held_ = on;
  if (on || stream.held_bytes_ == 0 || is_lost()) return;
  nghttp2_session_consume_stream(session_, stream.id_, std::exchange(stream.held_bytes_, 0));
  owner_.on_output();
}

// A window that is open only now and then makes no pace: time counts whenever it is shut, until all is sent.
void Http2Session::drop_slow(int64_t now_ns, int64_t quiet_ns) {
  if (is_broken_ || is_lost()) return;
  const auto look = [&](Pace& reading, size_t unsent_bytes, uint64_t sent_bytes, bool is_shut) {
    if (unsent_bytes == 0) {
      reading.rest();
    } else {
      reading.look(limits_.reading, now_ns, sent_bytes, is_shut);
    }
    return reading.is_late(now_ns, quiet_ns);
  };
  const bool is_shut = nghttp2_session_get_remote_window_size(session_) <= 0;
  const bool is_late = look(reading_, unsent_bytes_, sent_bytes_, is_shut);
  if (is_late) reading_.rest();
  for (const auto& stream : streams_) {
    Http2Stream& s = *stream;
    if (!s.has_begun_ && now_ns > s.opened_ns_ + limits_.fields_ns) return end("fields_without_end");
    const bool is_stream_shut = nghttp2_session_get_stream_remote_window_size(session_, s.id_) <= 0;
    const bool is_stream_late = look(s.reading_, s.unsent_bytes_, s.sent_bytes_, is_stream_shut);
    if (!is_stream_late && !(is_late && s.unsent_bytes_ > 0)) continue;
    s.reading_.rest();
    reset(s, NGHTTP2_CANCEL);
  }
}

void Http2Session::ping() {
  if (is_lost()) return;
  nghttp2_submit_ping(session_, NGHTTP2_FLAG_NONE, nullptr);
  owner_.on_output();
}

void Http2Session::on_ping() {
  if (is_broken_ || is_lost()) return;  // told already
  const int64_t interval_ns = streams_.empty() ? limits_.idle_ping_interval_ns : limits_.ping_interval_ns;
  if (!pings_.allows(now_ns_, interval_ns, limits_.ping_strikes)) end("too_many_pings");
}

/// Takes nothing more, and says why.
void Http2Session::end(std::string_view why) {
  nghttp2_submit_goaway(session_, NGHTTP2_FLAG_NONE, nghttp2_session_get_last_proc_stream_id(session_),
                        NGHTTP2_ENHANCE_YOUR_CALM, reinterpret_cast<const uint8_t*>(why.data()), why.size());
  is_broken_ = true;
  owner_.on_output();
}

void Http2Session::announce_end() {
  if (is_lost()) return;
  nghttp2_submit_shutdown_notice(session_);
  owner_.on_output();
}

void Http2Session::refuse_streams() {
  if (is_lost()) return;
  nghttp2_submit_goaway(session_, NGHTTP2_FLAG_NONE, nghttp2_session_get_last_proc_stream_id(session_),
                        NGHTTP2_NO_ERROR, nullptr, 0);
  owner_.on_output();
}

}  // namespace trireme::http
