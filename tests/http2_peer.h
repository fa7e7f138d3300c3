// An HTTP/2 client for tests: makes the bytes of requests, reads answers; over a socket or from string to
// string.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace trireme::tests {

using Http2PeerFields = std::vector<std::pair<std::string, std::string>>;

/// What came back on one stream.
struct Http2PeerAnswer {
  std::map<std::string, std::string> fields;  // trailers too
  std::string body;
  bool has_closed = false;
  uint32_t error = 0;  // of RST_STREAM
};

struct Http2PeerOptions {
  uint32_t window_bytes = 1u << 30;  // of what the server may send ahead
  uint32_t frame_bytes = 16384;      // of our DATA frames
  uint32_t padding = 0;
  bool reads_late = false;  // keeps windows shut until read() is called
};

class Http2Peer {
 public:
  explicit Http2Peer(const Http2PeerOptions& options = {});
  ~Http2Peer();
  Http2Peer(const Http2Peer&) = delete;
  Http2Peer& operator=(const Http2Peer&) = delete;

  /// Begins a request; its body may grow by more() until `is_whole`.
  int32_t request(const Http2PeerFields& fields, std::string body, bool is_whole = true);
  void more(int32_t stream, std::string_view body, bool is_whole);
  void reset(int32_t stream, uint32_t code);
  void ping();
  /// Lets the server send so many bytes more, on the stream or (0) on all.
  void widen(int32_t stream, int32_t bytes);

  /// Bytes for the server.
  std::string output();
  /// The server's bytes. False if they are no HTTP/2.
  bool input(std::string_view bytes);
  const Http2PeerAnswer& answer(int32_t stream);
  /// A GOAWAY has come, with this error; -1: none.
  int64_t goaway_error() const;
  int pings_answered() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Fields of a gRPC call.
Http2PeerFields grpc_fields(const std::string& path, const Http2PeerFields& more = {});
/// A message behind its five bytes.
std::string grpc_frame(std::string_view message, bool is_compressed = false);
/// One frame by hand.
std::string http2_frame(uint8_t type, uint8_t flags, uint32_t stream, std::string_view payload);
/// What a client says first, by hand.
std::string http2_preface();

/// A peer on a socket of its own, blocking.
class Http2Wire {
 public:
  Http2Wire(uint16_t port, const Http2PeerOptions& options = {});
  ~Http2Wire();
  Http2Wire(const Http2Wire&) = delete;
  Http2Wire& operator=(const Http2Wire&) = delete;

  Http2Peer peer;
  /// Sends what the peer has to say.
  void send();
  void send_raw(std::string_view bytes);
  /// Sends and reads for at most `ms`; false when the server has closed or nothing came.
  bool turn(int ms = 5000);
  /// Turns until the stream has closed.
  const Http2PeerAnswer& wait(int32_t stream);
  bool wait_closed(int ms = 5000);

 private:
  int fd_;
};

}  // namespace trireme::tests
