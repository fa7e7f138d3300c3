// HTTP/2 sessions on nghttp2: callbacks, bodies received in place, and limits for clients that cost too much.
#include "http/http2/http2_session.h"

#include <nghttp2/nghttp2.h>

#include <algorithm>

#include "base/error.h"
#include "http/http2/http2_library.h"
#include "http/http2/nghttp_fields.h"
#include "http/http2/nghttp_session.h"
#include "http/socket.h"

namespace trireme::http {
namespace {

constexpr size_t kShortFrameBytes = 16384, kLongFrameBytes = size_t{256} << 10;  // of frames sent
constexpr size_t kFrameHeadBytes = 9;

}  // namespace

/// Callbacks of nghttp2; `user` is the session. Each one passes a frame to the list of streams or to a limit.
struct Http2Session::Callbacks {
  static Http2Session& self(void* user) { return *static_cast<Http2Session*>(user); }
  static Http2Stream* stream_of(const nghttp2_frame* frame, void* user) {
    return self(user).library_->stream_of(frame->hd.stream_id);
  }

  static int on_begin_headers(nghttp2_session*, const nghttp2_frame* frame, void* user) {
    if (frame->hd.type != NGHTTP2_HEADERS || frame->headers.cat != NGHTTP2_HCAT_REQUEST) return 0;
    Http2Session& s = self(user);
    s.has_preface_ = true;
    s.streams_.begin(frame->hd.stream_id, s.now_ns_);
    return 0;
  }

  static int on_header(nghttp2_session*, const nghttp2_frame* frame, const uint8_t* name, size_t name_bytes,
                       const uint8_t* value, size_t value_bytes, uint8_t, void* user) {
    Http2Stream* stream = stream_of(frame, user);
    if (stream == nullptr) return 0;  // the stream was refused
    const bool is_taken =
        self(user).streams_.add_field(*stream, view_of(name, name_bytes), view_of(value, value_bytes));
    return is_taken ? 0 : NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
  }

  static int on_frame(nghttp2_session*, const nghttp2_frame* frame, void* user) {
    Http2Session& s = self(user);
    s.has_preface_ = true;
    const bool is_ack = (frame->hd.flags & NGHTTP2_FLAG_ACK) != 0;
    if (frame->hd.type == NGHTTP2_PING && !is_ack) s.on_ping();
    if (frame->hd.type == NGHTTP2_SETTINGS && !is_ack) s.on_settings(frame->settings.niv);
    if (frame->hd.type == NGHTTP2_RST_STREAM) s.on_failed_stream();
    if (frame->hd.type != NGHTTP2_HEADERS && frame->hd.type != NGHTTP2_DATA) return 0;
    Http2Stream* stream = stream_of(frame, user);
    if (stream == nullptr) return 0;
    if (frame->hd.type == NGHTTP2_HEADERS) s.streams_.end_fields(*stream);
    if ((frame->hd.flags & NGHTTP2_FLAG_END_STREAM) != 0) s.streams_.end(*stream);
    return 0;
  }

  static int on_data(nghttp2_session*, uint8_t, int32_t id, const uint8_t* data, size_t bytes, void* user) {
    Http2Session& s = self(user);
    Http2Stream* stream = s.library_->stream_of(id);
    if (stream != nullptr) s.streams_.add_data(*stream, view_of(data, bytes));
    s.library_->consume(id, bytes, stream != nullptr && s.streams_.is_held(*stream));
    return 0;
  }

  static int on_close(nghttp2_session*, int32_t id, uint32_t, void* user) {
    Http2Session& s = self(user);
    if (Http2Stream* stream = s.library_->stream_of(id); stream != nullptr) s.streams_.forget(*stream);
    return 0;
  }

  static int on_sent(nghttp2_session*, const nghttp2_frame* frame, void* user) {
    Http2Session& s = self(user);
    if (frame->hd.type == NGHTTP2_RST_STREAM && frame->rst_stream.error_code != NGHTTP2_NO_ERROR)
      s.on_failed_stream();
    if (frame->hd.type != NGHTTP2_HEADERS && frame->hd.type != NGHTTP2_DATA) return 0;
    s.pings_.earn();
    Http2Stream* stream = stream_of(frame, user);
    if (stream != nullptr && (frame->hd.flags & NGHTTP2_FLAG_END_STREAM) != 0)
      s.streams_.after_answer(*stream);
    return 0;
  }

  static ssize_t read_body(nghttp2_session*, int32_t, uint8_t*, size_t most, uint32_t* flags,
                           nghttp2_data_source* source, void* user) {
    auto& stream = *static_cast<Http2Stream*>(source->ptr);
    Http2Streams& streams = self(user).streams_;
    bool is_last = false;
    const size_t bytes = streams.next_frame_bytes(stream, most, is_last);
    if (bytes == 0 && !is_last) return NGHTTP2_ERR_DEFERRED;
    *flags |= NGHTTP2_DATA_FLAG_NO_COPY;
    if (is_last) *flags |= NGHTTP2_DATA_FLAG_EOF;
    if (is_last && streams.submit_trailers(stream)) *flags |= NGHTTP2_DATA_FLAG_NO_END_STREAM;
    return static_cast<ssize_t>(bytes);
  }

  static int send_body(nghttp2_session*, nghttp2_frame*, const uint8_t* head, size_t bytes,
                       nghttp2_data_source* source, void* user) {
    Http2Session& s = self(user);
    s.out_->text().append(view_of(head, kFrameHeadBytes));
    s.streams_.send(*static_cast<Http2Stream*>(source->ptr), bytes, *s.out_, s.copies_);
    return 0;
  }

  /// The length of a frame: as large as the client permits and the unsent bytes can fill. The library's
  /// default limit is 16 KiB; it allocates a buffer of the length returned here.
  static ssize_t frame_bytes(nghttp2_session*, uint8_t, int32_t id, int32_t connection_left,
                             int32_t stream_left, uint32_t frame_left, void* user) {
    Http2Session& s = self(user);
    const Http2Stream* stream = s.library_->stream_of(id);
    const size_t unsent = stream == nullptr ? 0 : s.streams_.unsent_bytes(*stream);
    const auto wanted = static_cast<int64_t>(std::clamp(unsent, kShortFrameBytes, kLongFrameBytes));
    return std::min({int64_t{connection_left}, int64_t{stream_left}, int64_t{frame_left}, wanted});
  }

  template <auto kCallback>
  static constexpr auto safe = Http2Callback<Http2Session, kCallback>::call;

  static std::unique_ptr<NghttpSession> open(const Http2Limits& limits, Http2Session& session,
                                             std::unique_ptr<Http2Memory> memory) {
    struct Freed {
      nghttp2_session_callbacks* to = nullptr;
      ~Freed() { nghttp2_session_callbacks_del(to); }
    } events;
    nghttp2_session_callbacks*& to = events.to;
    base::check(nghttp2_session_callbacks_new(&to) == 0, "out of memory for HTTP/2");
    nghttp2_session_callbacks_set_on_begin_headers_callback(to, safe<on_begin_headers>);
    nghttp2_session_callbacks_set_on_header_callback(to, safe<on_header>);
    nghttp2_session_callbacks_set_on_frame_recv_callback(to, safe<on_frame>);
    nghttp2_session_callbacks_set_on_data_chunk_recv_callback(to, safe<on_data>);
    nghttp2_session_callbacks_set_on_stream_close_callback(to, safe<on_close>);
    nghttp2_session_callbacks_set_on_frame_send_callback(to, safe<on_sent>);
    nghttp2_session_callbacks_set_send_data_callback(to, safe<send_body>);
    nghttp2_session_callbacks_set_data_source_read_length_callback(to, safe<frame_bytes>);
    return std::make_unique<NghttpSession>(limits, NghttpCallbacks{to, safe<read_body>, &session},
                                           std::move(memory));
  }
};

Http2Session::Http2Session(const Http2Limits& limits, Http2Owner& owner)
    : Http2Session(limits, owner, std::make_unique<Http2Memory>()) {}

Http2Session::Http2Session(const Http2Limits& limits, Http2Owner& owner, std::unique_ptr<Http2Memory> memory)
    : limits_(limits),
      owner_(owner),
      library_(Callbacks::open(limits_, *this, std::move(memory))),
      streams_(limits_, owner, *library_) {}

Http2Session::~Http2Session() { streams_.cut(); }

bool Http2Session::is_lost() const { return library_->is_lost(); }

bool Http2Session::is_over() const { return is_broken_ || library_->is_over(); }

bool Http2Session::feed(std::string_view bytes) {
  if (is_broken_ || is_lost()) return false;
  if (bytes.empty()) return true;
  place_.pass(bytes);
  library_->receive(bytes);
  return !is_broken_ && !is_lost();
}

bool Http2Session::receive(std::string_view bytes, int64_t now_ns) {
  now_ns_ = now_ns;
  const bool goes_on = feed(bytes);
  library_->settle_windows();
  return goes_on;
}

/// The stream to whose body the next bytes belong; null if there is none.
Http2Stream* Http2Session::body_stream() const {
  const int32_t id = place_.body_stream();
  return id == 0 ? nullptr : library_->stream_of(id);
}

size_t Http2Session::scatter(std::span<iovec> views, std::span<char> spill) {
  views_.forget();
  if (is_broken_ || is_lost()) return 0;
  Http2Stream* stream = body_stream();
  return stream == nullptr ? 0 : views_.plan(place_, stream->room(), views, spill);
}

bool Http2Session::receive_scattered(size_t bytes, int64_t now_ns) {
  now_ns_ = now_ns;
  const bool goes_on = views_.hand_on(place_, bytes, [this](std::string_view piece) { return feed(piece); });
  library_->settle_windows();
  return goes_on;
}

size_t Http2Session::awaited_bytes() const {
  Http2Stream* stream = body_stream();
  if (stream == nullptr) return 0;
  return std::min(stream->room().size(), library_->open_bytes(place_.body_stream()));
}

void Http2Session::send(Output& out, size_t most_bytes, bool copies) {
  out_ = &out;
  copies_ = copies;
  while (out.bytes() < most_bytes) {
    const std::string_view next = library_->next_to_send();
    if (next.empty()) break;
    out.text().append(next);
  }
  out_ = nullptr;
}

void Http2Session::drop_slow(int64_t now_ns, int64_t quiet_ns) {
  if (is_broken_ || is_lost()) return;
  if (!streams_.drop_slow(now_ns, quiet_ns)) end("fields_without_end");
}

void Http2Session::ping() {
  if (is_lost()) return;
  library_->ping();
  owner_.on_output();
}

void Http2Session::on_ping() {
  const int64_t interval_ns =
      streams_.open().empty() ? limits_.idle_ping_interval_ns : limits_.ping_interval_ns;
  if (!pings_.allows(now_ns_, interval_ns, limits_.ping_strikes)) end("too_many_pings");
}

/// One entry may cost a pass over all streams (RFC 9113, 6.9.2), and each frame costs an acknowledgement.
void Http2Session::on_settings(size_t entries) {
  if (!settings_.allows(now_ns_, entries + 1, limits_.settings_at_once, limits_.settings_per_second))
    end("too_many_settings");
}

/// A client that opens streams and resets them, or makes the server reset them, is not charged for the work
/// they began, and never exceeds the limit of open streams. nghttp2 also counts the client's own resets, but
/// still processes everything it had read.
void Http2Session::on_failed_stream() {
  if (!failures_.allows(now_ns_, 1, limits_.resets_at_once, limits_.resets_per_second))
    end("too_many_failed_streams");
}

/// Stops receiving and tells the client the reason, once.
void Http2Session::end(std::string_view why) {
  if (is_broken_ || is_lost()) return;
  library_->end(NGHTTP2_ENHANCE_YOUR_CALM, why);
  is_broken_ = true;
  owner_.on_output();
}

void Http2Session::announce_end() {
  if (is_lost()) return;
  library_->announce_end();
  owner_.on_output();
}

void Http2Session::refuse_streams() {
  if (is_lost()) return;
  library_->end(NGHTTP2_NO_ERROR, {});
  owner_.on_output();
}

}  // namespace trireme::http
