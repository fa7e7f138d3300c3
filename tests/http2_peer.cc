// The HTTP/2 client of tests, built on nghttp2's client session.
#include "tests/http2_peer.h"

#include <netinet/in.h>
#include <nghttp2/nghttp2.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "base/error.h"

namespace trireme::tests {

struct Http2Peer::Impl {
  struct Stream {
    Http2PeerAnswer answer;
    std::string body;
    size_t sent = 0;
    bool is_whole = true, is_deferred = false;
  };
  Http2PeerOptions options;
  nghttp2_session* session = nullptr;
  std::map<int32_t, Stream> streams;
  int64_t goaway = -1;
  int pongs = 0;

  static Impl& self(void* user) { return *static_cast<Impl*>(user); }

  static ssize_t read_body(nghttp2_session*, int32_t id, uint8_t* to, size_t most, uint32_t* flags,
                           nghttp2_data_source*, void* user) {
    Stream& s = self(user).streams[id];
    const size_t bytes = std::min({most, s.body.size() - s.sent, size_t{self(user).options.frame_bytes}});
    if (bytes == 0 && !s.is_whole) {
      s.is_deferred = true;
      return NGHTTP2_ERR_DEFERRED;
    }
    std::memcpy(to, s.body.data() + s.sent, bytes);
    s.sent += bytes;
    if (s.sent == s.body.size() && s.is_whole) *flags |= NGHTTP2_DATA_FLAG_EOF;
    return static_cast<ssize_t>(bytes);
  }
  static ssize_t frame_bytes(nghttp2_session*, uint8_t, int32_t, int32_t connection, int32_t stream,
                             uint32_t frame, void* user) {
    return std::min<int64_t>({connection, stream, frame, self(user).options.frame_bytes});
  }
  static ssize_t pad(nghttp2_session*, const nghttp2_frame* frame, size_t most, void* user) {
    return static_cast<ssize_t>(std::min<size_t>(most, frame->hd.length + self(user).options.padding));
  }
  static int on_header(nghttp2_session*, const nghttp2_frame* frame, const uint8_t* name, size_t name_bytes,
                       const uint8_t* value, size_t value_bytes, uint8_t, void* user) {
    self(user).streams[frame->hd.stream_id].answer.fields[std::string(name, name + name_bytes)] =
        std::string(value, value + value_bytes);
    return 0;
  }
  static int on_data(nghttp2_session*, uint8_t, int32_t id, const uint8_t* data, size_t bytes, void* user) {
    self(user).streams[id].answer.body.append(data, data + bytes);
    return 0;
  }
  static int on_close(nghttp2_session*, int32_t id, uint32_t error, void* user) {
    self(user).streams[id].answer.has_closed = true;
    self(user).streams[id].answer.error = error;
    return 0;
  }
  static int on_frame(nghttp2_session*, const nghttp2_frame* frame, void* user) {
    if (frame->hd.type == NGHTTP2_GOAWAY) self(user).goaway = frame->goaway.error_code;
    if (frame->hd.type == NGHTTP2_PING && (frame->hd.flags & NGHTTP2_FLAG_ACK) != 0) ++self(user).pongs;
    return 0;
  }
};

Http2Peer::Http2Peer(const Http2PeerOptions& options) : impl_(std::make_unique<Impl>()) {
  impl_->options = options;
  nghttp2_session_callbacks* callbacks = nullptr;
  nghttp2_session_callbacks_new(&callbacks);
  nghttp2_session_callbacks_set_on_header_callback(callbacks, Impl::on_header);
  nghttp2_session_callbacks_set_on_data_chunk_recv_callback(callbacks, Impl::on_data);
  nghttp2_session_callbacks_set_on_stream_close_callback(callbacks, Impl::on_close);
  nghttp2_session_callbacks_set_on_frame_recv_callback(callbacks, Impl::on_frame);
  nghttp2_session_callbacks_set_data_source_read_length_callback(callbacks, Impl::frame_bytes);
  if (options.padding > 0) nghttp2_session_callbacks_set_select_padding_callback(callbacks, Impl::pad);
  nghttp2_option* option = nullptr;
  nghttp2_option_new(&option);
  nghttp2_option_set_no_auto_window_update(option, options.reads_late ? 1 : 0);
  nghttp2_option_set_peer_max_concurrent_streams(option, 100'000);
  base::check(nghttp2_session_client_new2(&impl_->session, callbacks, impl_.get(), option) == 0, "no client");
  nghttp2_option_del(option);
  nghttp2_session_callbacks_del(callbacks);
  const std::array<nghttp2_settings_entry, 1> settings = {
      {{NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, options.window_bytes}}};
  nghttp2_submit_settings(impl_->session, 0, settings.data(), settings.size());
  if (!options.reads_late && options.window_bytes > 65535)
    nghttp2_session_set_local_window_size(impl_->session, 0, 0, static_cast<int32_t>(options.window_bytes));
}

Http2Peer::~Http2Peer() { nghttp2_session_del(impl_->session); }

int32_t Http2Peer::request(const Http2PeerFields& fields, std::string body, bool is_whole) {
  std::vector<nghttp2_nv> pairs;
  const auto bytes = [](const std::string& s) {
    return reinterpret_cast<uint8_t*>(const_cast<char*>(s.data()));
  };
  for (const auto& [name, value] : fields)
    pairs.push_back({bytes(name), bytes(value), name.size(), value.size(), NGHTTP2_NV_FLAG_NONE});
  nghttp2_data_provider provider{};
  provider.read_callback = Impl::read_body;
  const bool has_body = !body.empty() || !is_whole;
  const int32_t id = nghttp2_submit_request(impl_->session, nullptr, pairs.data(), pairs.size(),
                                            has_body ? &provider : nullptr, nullptr);
  impl_->streams[id].body = std::move(body);
  impl_->streams[id].is_whole = is_whole;
  return id;
}

void Http2Peer::more(int32_t stream, std::string_view body, bool is_whole) {
  Impl::Stream& s = impl_->streams[stream];
  s.body += body;
  s.is_whole = is_whole;
  if (std::exchange(s.is_deferred, false)) nghttp2_session_resume_data(impl_->session, stream);
}

void Http2Peer::reset(int32_t stream, uint32_t code) {
  nghttp2_submit_rst_stream(impl_->session, 0, stream, code);
}

void Http2Peer::ping() { nghttp2_submit_ping(impl_->session, 0, nullptr); }

void Http2Peer::widen(int32_t stream, int32_t bytes) {
  nghttp2_submit_window_update(impl_->session, 0, stream, bytes);
}

std::string Http2Peer::output() {
  std::string out;
  const uint8_t* data = nullptr;
  for (ssize_t n; (n = nghttp2_session_mem_send(impl_->session, &data)) > 0;) out.append(data, data + n);
  return out;
}

bool Http2Peer::input(std::string_view bytes) {
  return nghttp2_session_mem_recv(impl_->session, reinterpret_cast<const uint8_t*>(bytes.data()),
                                  bytes.size()) >= 0;
}

const Http2PeerAnswer& Http2Peer::answer(int32_t stream) { return impl_->streams[stream].answer; }
int64_t Http2Peer::goaway_error() const { return impl_->goaway; }
int Http2Peer::pings_answered() const { return impl_->pongs; }

Http2PeerFields grpc_fields(const std::string& path, const Http2PeerFields& more) {
  Http2PeerFields fields = {{":method", "POST"}, {":scheme", "http"}, {":path", path},
                            {":authority", "a"}, {"te", "trailers"},  {"content-type", "application/grpc"}};
  fields.insert(fields.end(), more.begin(), more.end());
  return fields;
}

std::string grpc_frame(std::string_view message, bool is_compressed) {
  std::string out(1, static_cast<char>(is_compressed));
  for (const int shift : {24, 16, 8, 0}) out += static_cast<char>(message.size() >> shift & 0xff);
  return out.append(message);
}

std::string http2_frame(uint8_t type, uint8_t flags, uint32_t stream, std::string_view payload) {
  std::string out;
  for (const int shift : {16, 8, 0}) out += static_cast<char>(payload.size() >> shift & 0xff);
  out += static_cast<char>(type);
  out += static_cast<char>(flags);
  for (const int shift : {24, 16, 8, 0}) out += static_cast<char>(stream >> shift & 0xff);
  return out.append(payload);
}

std::string http2_preface() {
  return "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + http2_frame(NGHTTP2_SETTINGS, 0, 0, "");
}

Http2Wire::Http2Wire(uint16_t port, const Http2PeerOptions& options)
    : peer(options), fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  base::check(connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0, "cannot connect");
}

Http2Wire::~Http2Wire() { close(fd_); }

void Http2Wire::send() { send_raw(peer.output()); }

void Http2Wire::send_raw(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) return;
    bytes.remove_prefix(static_cast<size_t>(sent));
  }
}

bool Http2Wire::turn(int ms) {
  send();
  pollfd waiting{fd_, POLLIN, 0};
  if (poll(&waiting, 1, ms) <= 0) return false;
  std::array<char, 65536> buffer;
  const ssize_t got = recv(fd_, buffer.data(), buffer.size(), 0);
  return got > 0 && peer.input({buffer.data(), static_cast<size_t>(got)});
}

const Http2PeerAnswer& Http2Wire::wait(int32_t stream) {
  while (!peer.answer(stream).has_closed && turn()) {
  }
  return peer.answer(stream);
}

bool Http2Wire::wait_closed(int ms) {
  send();
  pollfd waiting{fd_, POLLIN, 0};
  std::array<char, 65536> buffer;
  while (poll(&waiting, 1, ms) > 0) {
    const ssize_t got = recv(fd_, buffer.data(), buffer.size(), 0);
    if (got <= 0) return true;
    peer.input({buffer.data(), static_cast<size_t>(got)});
  }
  return false;
}

}  // namespace trireme::tests
