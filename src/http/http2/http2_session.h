// HTTP/2 of one connection, apart from its socket: received bytes become streams' events, answers become
// bytes.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "http/http2/http2_frames.h"
#include "http/http2/http2_limits.h"
#include "http/http2/http2_rules.h"
#include "http/http2/http2_streams.h"
#include "http/pace.h"

namespace trireme::http {

class Http2Memory;
class NghttpSession;
class Output;

/// Single-threaded; frames, header compression and flow control are nghttp2's, streams and answers those of
/// Http2Streams. Here: bytes in, bytes out, and whether the client behaves.
class Http2Session {
 public:
  Http2Session(const Http2Limits& limits, Http2Owner& owner);
  /// `memory` is what nghttp2 uses.
  Http2Session(const Http2Limits& limits, Http2Owner& owner, std::unique_ptr<Http2Memory> memory);
  ~Http2Session();
  Http2Session(const Http2Session&) = delete;
  Http2Session& operator=(const Http2Session&) = delete;

  /// Takes all bytes; false: the connection cannot go on (what send() gives is still worth sending).
  bool receive(std::string_view bytes, int64_t now_ns);
  /// Inside the body of a large message: views to fill in one call, where the bytes of the body go to their
  /// place and the frames' heads between them to the session's. The last one is `spill`. 0: read and
  /// receive() instead.
  size_t scatter(std::span<iovec> views, std::span<char> spill);
  /// So many bytes lie in scatter()'s views.
  bool receive_scattered(size_t bytes, int64_t now_ns);
  /// Bytes that the message being received misses and that the client may send without being told more; 0:
  /// none.
  size_t awaited_bytes() const;

  /// Moves frames to `out` until nothing waits or `out` has `most_bytes`. `copies`: no part is queued as a
  /// view.
  void send(Output& out, size_t most_bytes, bool copies);
  /// Nothing more can be received or sent.
  bool is_over() const;
  /// Something failed halfway, memory for example: nothing reaches nghttp2 any more.
  bool is_lost() const;
  /// The client has said what an HTTP/2 client says first.
  bool has_preface() const { return has_preface_; }
  int64_t last_receive_ns() const { return now_ns_; }
  Http2Streams& streams() { return streams_; }

  /// Http2Streams::drop_slow(), and the end of a client that does not end the fields of a request. Called now
  /// and then.
  void drop_slow(int64_t now_ns, int64_t quiet_ns = Pace::kNever);
  /// Asks whether the client is there; last_receive_ns() tells.
  void ping();
  /// First that streams should go elsewhere, then that none is taken any more.
  void announce_end();
  void refuse_streams();

 private:
  struct Callbacks;
  bool feed(std::string_view bytes);
  Http2Stream* body_stream() const;
  void on_ping();
  void on_settings(size_t entries);
  void on_failed_stream();
  void end(std::string_view why);

  const Http2Limits limits_;
  Http2Owner& owner_;
  const std::unique_ptr<NghttpSession> library_;
  Http2Streams streams_;
  FramePlace place_;
  BodyViews views_;  // of the last scatter()
  PingRule pings_;
  RateRule settings_, failures_;
  Output* out_ = nullptr;   // during send()
  bool copies_ = false;     // likewise
  bool is_broken_ = false;  // takes no more, but may still have to say why
  bool has_preface_ = false;
  int64_t now_ns_ = 0;
};

}  // namespace trireme::http
