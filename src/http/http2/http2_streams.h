// The open streams of an HTTP/2 session: what their clients send goes to who answers, answers go to the
// client.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "http/http2/http2_answer.h"
#include "http/http2/http2_field.h"
#include "http/http2/http2_limits.h"
#include "http/http2/http2_rules.h"
#include "http/http2/http2_stream.h"

namespace trireme::http {

class NghttpSession;
class Output;

/// Who owns a session.
class Http2Owner {
 public:
  virtual ~Http2Owner() = default;
  virtual std::shared_ptr<Http2Stream> open_stream() = 0;
  /// Something waits to be sent. Called often.
  virtual void on_output() = 0;
};

/// Invariant: a stream is in the list from begin() to forget(), and nghttp2 knows its address as long and no
/// longer; what the list counts of unsent bytes and kept fields is the sum over its streams.
class Http2Streams {
 public:
  Http2Streams(const Http2Limits& limits, Http2Owner& owner, NghttpSession& library)
      : limits_(limits), owner_(owner), library_(library) {}
  Http2Streams(const Http2Streams&) = delete;
  Http2Streams& operator=(const Http2Streams&) = delete;

  const std::vector<std::shared_ptr<Http2Stream>>& open() const { return streams_; }
  const Http2Limits& limits() const { return limits_; }
  /// So much is unsent that new streams are refused and who does not read should go soon.
  bool is_full() const { return unsent_.waiting_bytes() > limits_.max_unsent_bytes; }

  // For who answers an open stream; after on_close() none of these may be called.
  /// Answers' fields; the whole answer if `is_end`, else write() and finish() follow.
  void respond(Http2Stream& stream, std::span<const Http2Field> fields, bool is_end);
  void write(Http2Stream& stream, BodyPart part);
  /// Ends the answer. A client that still sends is told that it need not.
  void finish(Http2Stream& stream, Http2Fields trailers);
  void reset(Http2Stream& stream, uint32_t code);
  /// While held, the client may fill the stream's window and no more.
  void hold(Http2Stream& stream, bool on);

  // For the session: what the client does on a stream.
  void begin(int32_t id, int64_t now_ns);
  /// False: the stream is to be reset, its fields are too many to be looked at or find no memory.
  bool add_field(Http2Stream& stream, std::string_view name, std::string_view value);
  /// Of the first fields; those that come later are trailers, and say nothing here.
  void end_fields(Http2Stream& stream);
  void add_data(Http2Stream& stream, std::string_view bytes);
  bool is_held(const Http2Stream& stream) const { return stream.is_held_; }
  void end(Http2Stream& stream);
  void forget(Http2Stream& stream);
  /// Forgets all.
  void cut();

  // And what the client gets.
  /// What the next frame of the body may carry of `most` bytes; nothing: there is nothing yet, nghttp2 is
  /// told later. `is_last`: the body ends with it.
  size_t next_frame_bytes(Http2Stream& stream, size_t most, bool& is_last);
  size_t unsent_bytes(const Http2Stream& stream) const { return stream.answer_.unsent().waiting_bytes(); }
  /// True: trailers follow the body that ends.
  bool submit_trailers(Http2Stream& stream);
  void send(Http2Stream& stream, size_t bytes, Output& out, bool copies);
  /// The answer's last frame has left.
  void after_answer(Http2Stream& stream);

  /// Resets streams whose client opens the window of an answer too slowly, or not at all for `quiet_ns`, and
  /// all that have something to say if it is the connection's window. False: the fields of a request do not
  /// end.
  bool drop_slow(int64_t now_ns, int64_t quiet_ns);

 private:
  void resume(Http2Stream& stream);

  const Http2Limits& limits_;
  Http2Owner& owner_;
  NghttpSession& library_;
  std::vector<std::shared_ptr<Http2Stream>> streams_;
  FieldAccount fields_;
  Http2Unsent unsent_;  // of all streams, by the connection's window
};

}  // namespace trireme::http
