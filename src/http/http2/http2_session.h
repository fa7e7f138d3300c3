// HTTP/2 of one connection, apart from its socket: received bytes become streams' events, answers become
// bytes.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "http/http2/http2_frames.h"
#include "http/http2/http2_rules.h"
#include "http/http2/http2_stream.h"
#include "http/message.h"
#include "http/pace.h"

struct nghttp2_session;

namespace trireme::http {

class Http2Memory;
class Http2Session;
class Output;

struct Http2Limits {
  uint32_t max_streams = 1024;                  // open at once, told to the client
  uint32_t stream_window_bytes = 4u << 20;      // what a client may send ahead on a stream
  int32_t connection_window_bytes = 32 << 20;   // and on all of them
  uint32_t max_frame_bytes = 1u << 20;          // of a received frame
  uint32_t max_field_bytes = 16u << 10;         // of a request's header fields, 32 for each besides its text
  uint64_t resets_at_once = 10'000;             // RST_STREAM frames before the connection is ended,
  uint64_t resets_per_second = 1'000;           // and how fast they are forgiven
  size_t max_unsent_bytes = size_t{256} << 20;  // of answers; with more, see is_full()
  int ping_strikes = 2;                         // pings too early that are forgiven
  int64_t ping_interval_ns = 300'000'000'000;   // between pings without an answer from us in between,
  int64_t idle_ping_interval_ns = 7'200'000'000'000;  // and without a stream
  int64_t fields_ns = 10'000'000'000;                 // from the first of a request's fields to their end
  PaceLimits sending;  // of a client within a message; who is slower loses the call
  PaceLimits reading;  // of one whose window is shut before an answer; likewise
};

/// Who owns a session.
class Http2Owner {
 public:
  virtual ~Http2Owner() = default;
  virtual std::shared_ptr<Http2Stream> open_stream() = 0;
  /// Something waits to be sent. Called often.
  virtual void on_output() = 0;
};

/// Single-threaded; frames, header compression and flow control are nghttp2's.
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
  size_t streams() const { return streams_.size(); }
  /// The client has said what an HTTP/2 client says first.
  bool has_preface() const { return has_preface_; }
  const std::vector<std::shared_ptr<Http2Stream>>& open_streams() const { return streams_; }

  // For streams that are open; after on_close() none of these may be called.
  /// Answers' fields; the whole answer if `is_end`, else write() and finish() follow.
  void respond(Http2Stream& stream, std::span<const Http2Field> fields, bool is_end);
  void write(Http2Stream& stream, BodyPart part);
  /// Ends the answer. A client that still sends is told that it need not.
  void finish(Http2Stream& stream, Http2Fields trailers);
  void reset(Http2Stream& stream, uint32_t code);
  /// While held, the client may fill the stream's window and no more.
  void hold(Http2Stream& stream, bool on);

  /// Resets streams whose client opens the window of an answer too slowly, or not at all for `quiet_ns`, and
  /// all that have something to say if it is the connection's window. Ends the session of a client that does
  /// not end the fields of a request. Called now and then.
  void drop_slow(int64_t now_ns, int64_t quiet_ns = Pace::kNever);
  /// So much is unsent that new streams are refused and who does not read should go soon.
  bool is_full() const { return unsent_bytes_ > limits_.max_unsent_bytes; }
  const Http2Limits& limits() const { return limits_; }
  /// Asks whether the client is there; last_receive_ns() tells.
  void ping();
  int64_t last_receive_ns() const { return now_ns_; }
  /// First that streams should go elsewhere, then that none is taken any more.
  void announce_end();
  void refuse_streams();
  /// Forgets all streams.
  void cut_streams();

 private:
  struct Callbacks;
  bool feed(std::string_view bytes);
  void consume(int32_t id, size_t bytes, bool is_held);
  void settle_windows();
  Http2Stream* stream_of(int32_t id) const;
  void resume(Http2Stream& stream);
  void emit(Http2Stream& stream, const uint8_t* head, size_t bytes);
  void forget(Http2Stream& stream);
  void on_ping();
  void end(std::string_view why);

  Http2Limits limits_;
  Http2Owner& owner_;
  std::unique_ptr<Http2Memory> memory_;
  nghttp2_session* session_ = nullptr;  // in memory_, with which it ends
  std::vector<std::shared_ptr<Http2Stream>> streams_;
  FramePlace place_;
  BodyViews views_;  // of the last scatter()
  PingRule pings_;
  FieldAccount fields_;
  Output* out_ = nullptr;  // during send()
  // Bytes of bodies that windows are to be opened for, of all streams and of the last one.
  size_t consumed_bytes_ = 0, stream_consumed_bytes_ = 0;
  int32_t consumed_id_ = 0;
  bool copies_ = false, is_lost_ = false, has_preface_ = false;
  bool is_broken_ = false;   // takes no more, but may still have to say why
  size_t unsent_bytes_ = 0;  // of all streams
  uint64_t sent_bytes_ = 0;  // of bodies
  Pace reading_;             // of the connection's window
  int64_t now_ns_ = 0;
};

}  // namespace trireme::http
