// An HTTP/2 client based on nghttp2.
#include "http/http2/http2_client.h"

#include <nghttp2/nghttp2.h>

#include <algorithm>
#include <array>
#include <vector>

#include "base/error.h"
#include "http/http2/http2_library.h"
#include "http/http2/nghttp_fields.h"

namespace trireme::http {
namespace {

constexpr uint32_t kWindowBytes = 64u << 20;  // large: answers are read as they arrive
constexpr uint32_t kFrameBytes = 1u << 20;
constexpr size_t kKeptCapacity = size_t{1} << 20;

}  // namespace

/// Callbacks of nghttp2; `user` is the client.
struct Http2Client::Callbacks {
  static Http2Client& self(void* user) { return *static_cast<Http2Client*>(user); }

  static int on_header(nghttp2_session*, const nghttp2_frame* frame, const uint8_t* name, size_t name_bytes,
                       const uint8_t* value, size_t value_bytes, uint8_t, void* user) {
    if (frame->hd.stream_id == self(user).stream_)
      self(user).caller_.on_field(view_of(name, name_bytes), view_of(value, value_bytes));
    return 0;
  }

  static int on_data(nghttp2_session*, uint8_t, int32_t id, const uint8_t* data, size_t bytes, void* user) {
    if (id == self(user).stream_) self(user).caller_.on_data(view_of(data, bytes));
    return 0;
  }

  static int on_close(nghttp2_session*, int32_t id, uint32_t error, void* user) {
    if (id != self(user).stream_) return 0;
    self(user).stream_ = 0;
    self(user).body_ = {};
    self(user).caller_.on_end(error);
    return 0;
  }

  static ssize_t read_body(nghttp2_session*, int32_t, uint8_t*, size_t most, uint32_t* flags,
                           nghttp2_data_source*, void* user) {
    const size_t bytes = std::min(most, self(user).body_.size());
    *flags |= NGHTTP2_DATA_FLAG_NO_COPY;
    if (bytes == self(user).body_.size()) *flags |= NGHTTP2_DATA_FLAG_EOF;
    return static_cast<ssize_t>(bytes);
  }

  static int send_body(nghttp2_session*, nghttp2_frame*, const uint8_t* head, size_t bytes,
                       nghttp2_data_source*, void* user) {
    Http2Client& c = self(user);
    c.out_.append(view_of(head, 9)).append(c.body_.substr(0, bytes));
    c.body_.remove_prefix(bytes);
    return 0;
  }

  /// As large as the server accepts; the library's own limit is 16 KiB.
  static ssize_t frame_bytes(nghttp2_session*, uint8_t, int32_t, int32_t connection_left, int32_t stream_left,
                             uint32_t frame_left, void*) {
    return std::min(
        {int64_t{connection_left}, int64_t{stream_left}, int64_t{frame_left}, int64_t{kFrameBytes}});
  }

  static nghttp2_session_callbacks* make() {
    nghttp2_session_callbacks* to = nullptr;
    base::check(nghttp2_session_callbacks_new(&to) == 0, "out of memory for HTTP/2");
    nghttp2_session_callbacks_set_on_header_callback(to, Http2Callback<Http2Client, on_header>::call);
    nghttp2_session_callbacks_set_on_data_chunk_recv_callback(to, Http2Callback<Http2Client, on_data>::call);
    nghttp2_session_callbacks_set_on_stream_close_callback(to, Http2Callback<Http2Client, on_close>::call);
    nghttp2_session_callbacks_set_send_data_callback(to, Http2Callback<Http2Client, send_body>::call);
    nghttp2_session_callbacks_set_data_source_read_length_callback(to, frame_bytes);
    return to;
  }
};

Http2Client::Http2Client(Http2Caller& caller) : caller_(caller), memory_(std::make_unique<Http2Memory>()) {
  nghttp2_option* option = nullptr;
  nghttp2_session_callbacks* callbacks = Callbacks::make();
  int failed = nghttp2_option_new(&option);
  if (failed == 0) {
    nghttp2_option_set_no_closed_streams(option, 1);
    failed = nghttp2_session_client_new3(&session_, callbacks, this, option, memory_->functions());
    nghttp2_option_del(option);
  }
  nghttp2_session_callbacks_del(callbacks);
  base::check(failed == 0, "HTTP/2 session cannot be made: ", nghttp2_strerror(failed));
  const std::array<nghttp2_settings_entry, 3> settings = {
      {{NGHTTP2_SETTINGS_ENABLE_PUSH, 0},
       {NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, kWindowBytes},
       {NGHTTP2_SETTINGS_MAX_FRAME_SIZE, kFrameBytes}}};
  nghttp2_submit_settings(session_, NGHTTP2_FLAG_NONE, settings.data(), settings.size());
  nghttp2_session_set_local_window_size(session_, NGHTTP2_FLAG_NONE, 0, kWindowBytes);
}

Http2Client::~Http2Client() = default;

bool Http2Client::is_lost() const { return is_broken_ || memory_->has_failed(); }

bool Http2Client::begin(std::span<const Field> fields, std::string_view body) {
  base::check(stream_ == 0, "an HTTP/2 call begins before the last one is over");
  if (is_lost()) return false;
  std::vector<nghttp2_nv> pairs;
  pairs.reserve(fields.size());
  for (const Field& field : fields) pairs.push_back(pair_of(field));
  body_ = body;
  nghttp2_data_provider provider{};
  provider.read_callback = Http2Callback<Http2Client, Callbacks::read_body>::call;
  stream_ = nghttp2_submit_request(session_, nullptr, pairs.data(), pairs.size(), &provider, nullptr);
  if (stream_ > 0) return true;
  stream_ = 0;
  is_broken_ = true;
  return false;
}

bool Http2Client::receive(std::string_view bytes) {
  if (is_lost()) return false;
  const ssize_t used =
      nghttp2_session_mem_recv(session_, reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
  if (used < 0) is_broken_ = true;
  return !is_lost();
}

std::string_view Http2Client::unsent() {
  while (!is_lost()) {
    const uint8_t* data = nullptr;
    const ssize_t bytes = nghttp2_session_mem_send(session_, &data);
    if (bytes < 0) is_broken_ = true;
    if (bytes <= 0) break;
    out_.append(view_of(data, static_cast<size_t>(bytes)));
  }
  return std::string_view(out_).substr(out_sent_);
}

void Http2Client::sent(size_t bytes) {
  out_sent_ += bytes;
  if (out_sent_ < out_.size()) return;
  out_.clear();
  out_sent_ = 0;
  if (out_.capacity() > kKeptCapacity) out_.shrink_to_fit();
}

bool Http2Client::is_usable() const {
  return !is_lost() && nghttp2_session_check_request_allowed(session_) != 0;
}

}  // namespace trireme::http
