// Internal to HTTP/2: an nghttp2 session of a server, which nobody calls any more once something failed in
// it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "http/http2/http2_field.h"
#include "http/http2/http2_library.h"
#include "http/http2/http2_limits.h"

namespace trireme::http {

class Http2Stream;

/// What nghttp2 calls, with `user` as the last argument.
struct NghttpCallbacks {
  nghttp2_session_callbacks* events;  // given back to nghttp2 by who made them
  nghttp2_data_source_read_callback read_body;
  void* user;
};

/// Invariant: after a call that failed halfway, for want of memory for example, the session is lost: nghttp2
/// is in no known state, nothing reaches it any more, and every function here does nothing. Its memory goes
/// as a whole (Http2Memory).
class NghttpSession {
 public:
  /// Tells the client our settings. Throws internal if there is no memory.
  NghttpSession(const Http2Limits& limits, const NghttpCallbacks& callbacks,
                std::unique_ptr<Http2Memory> memory);

  bool is_lost() const { return is_lost_ || memory_->has_failed(); }
  /// Nothing more can be received or sent.
  bool is_over() const;

  /// Takes the client's bytes: callbacks are called.
  void receive(std::string_view bytes);
  /// The next bytes for the client, good until the next call; empty: there are none.
  std::string_view next_to_send();

  // Streams, by their numbers.
  Http2Stream* stream_of(int32_t id) const;
  /// Null: there is none any more.
  void set_stream(int32_t id, Http2Stream* stream);
  /// The whole answer, if `body` is null; it is what read_body is given.
  void respond(int32_t id, std::span<const Http2Field> fields, Http2Stream* body);
  /// From read_body, of a body that ends.
  void submit_trailers(int32_t id, const Http2Fields& trailers);
  /// read_body is asked again.
  void resume(int32_t id);
  void reset(int32_t id, uint32_t code);

  // Windows that the client sends into.
  /// Bytes of a body were taken; `is_held`: only the connection's window is to be opened for them. Takes
  /// effect by settle_windows(), once for all frames of a read.
  void consume(int32_t id, size_t bytes, bool is_held);
  void consume_held(int32_t id, size_t bytes);
  void settle_windows();
  /// What the client may send on the stream without being told more.
  size_t open_bytes(int32_t id) const;
  // And those that it opens for us; 0: all streams'.
  bool is_shut(int32_t id) const;

  void ping();
  void announce_end();
  /// No new streams; with an error, no bytes either.
  void end(uint32_t error, std::string_view why);

 private:
  std::unique_ptr<Http2Memory> memory_;
  nghttp2_data_source_read_callback read_body_;
  nghttp2_session* session_ = nullptr;  // in memory_, with which it ends
  bool is_lost_ = false;
  // Bytes of bodies that windows are to be opened for, of all streams and of the last one.
  size_t consumed_bytes_ = 0, stream_consumed_bytes_ = 0;
  int32_t consumed_id_ = 0;
};

}  // namespace trireme::http
