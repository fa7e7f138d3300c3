// The client's side of an HTTP/2 connection, apart from its socket: one call after the other, as bytes to
// send and bytes that came.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

struct nghttp2_session;

namespace trireme::http {

class Http2Memory;

/// Who makes a call.
class Http2Caller {
 public:
  virtual ~Http2Caller() = default;
  /// A field of the answer's head or trailers.
  virtual void on_field(std::string_view name, std::string_view value) = 0;
  virtual void on_data(std::string_view bytes) = 0;
  /// The call is over; `error` is the code of a reset, 0 for a whole answer.
  virtual void on_end(uint32_t error) = 0;
};

/// Single-threaded; frames, header compression and flow control are nghttp2's.
class Http2Client {
 public:
  using Field = std::pair<std::string_view, std::string_view>;

  explicit Http2Client(Http2Caller& caller);
  ~Http2Client();
  Http2Client(const Http2Client&) = delete;
  Http2Client& operator=(const Http2Client&) = delete;

  /// Begins a call; the one before must be over. `body` must stay until then. False: the server takes no more
  /// on this connection.
  bool begin(std::span<const Field> fields, std::string_view body);
  /// Takes received bytes; false: the connection cannot go on.
  bool receive(std::string_view bytes);
  /// What waits to be sent; sent() says how much of it has left.
  std::string_view unsent();
  void sent(size_t bytes);
  /// Another call may follow on this connection.
  bool is_usable() const;
  /// Something failed halfway, memory for example.
  bool is_lost() const;

 private:
  struct Callbacks;
  Http2Caller& caller_;
  std::unique_ptr<Http2Memory> memory_;
  nghttp2_session* session_ = nullptr;  // in memory_, with which it ends
  int32_t stream_ = 0;
  std::string_view body_;  // what of it nghttp2 has not framed yet
  std::string out_;
  size_t out_sent_ = 0;
  bool is_broken_ = false;
};

}  // namespace trireme::http
