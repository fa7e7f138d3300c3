// The bytes of HTTP/2 answers that are not sent yet: of one stream, and counted for all of a session.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>

#include "http/http2/http2_field.h"
#include "http/message.h"
#include "http/pace.h"

namespace trireme::http {

class Output;

/// Bytes of bodies that wait for a window of the client's, a stream's or the connection's, and the pace at
/// which the client opens it.
class Http2Unsent {
 public:
  void put(size_t bytes) { waiting_bytes_ += bytes; }
  void send(size_t bytes) { waiting_bytes_ -= bytes, sent_bytes_ += bytes; }
  void drop(size_t bytes) { waiting_bytes_ -= bytes; }
  size_t waiting_bytes() const { return waiting_bytes_; }
  uint64_t sent_bytes() const { return sent_bytes_; }

  /// Looks at the clock; true: the client is late, and its pace begins anew. A window that is open only now
  /// and then makes no pace: time counts whenever it `is_shut`, until all is sent.
  bool is_late(const PaceLimits& limits, int64_t now_ns, bool is_shut, int64_t quiet_ns);

 private:
  size_t waiting_bytes_ = 0;
  uint64_t sent_bytes_ = 0;
  Pace reading_;
};

/// The body of one stream's answer and what ends it.
class Http2Answer {
 public:
  void put(BodyPart part);
  void finish(Http2Fields trailers);
  bool is_finished() const { return is_finished_; }
  const Http2Fields& trailers() const { return trailers_; }
  Http2Unsent& unsent() { return unsent_; }
  const Http2Unsent& unsent() const { return unsent_; }

  /// Moves the next bytes to `out`, as views of the parts where these are long and `copies` is false.
  void send(size_t bytes, Output& out, bool copies);
  /// Forgets the parts; gives their unsent bytes.
  size_t drop();

  /// Nothing was there to be sent when nghttp2 asked: it asks again once it is told to resume.
  void defer() { is_deferred_ = true; }
  bool take_deferred();

 private:
  std::deque<BodyPart> parts_;
  size_t front_sent_ = 0;  // of the first part
  Http2Unsent unsent_;
  Http2Fields trailers_;
  bool is_finished_ = false, is_deferred_ = false;
};

}  // namespace trireme::http
