// One stream of an HTTP/2 session as what answers it sees it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "http/http2/http2_answer.h"
#include "http/http2/http2_field.h"

namespace trireme::http {

/// All calls come on the session's thread, on_close() last.
class Http2Stream {
 public:
  virtual ~Http2Stream() = default;
  virtual void on_field(std::string_view name, std::string_view value) = 0;
  /// `fits`: false if the fields were too many or too long and were left out.
  virtual void on_fields_end(bool fits) = 0;
  /// Where the next bytes of the body should lie; empty: anywhere. Stays until on_data().
  virtual std::span<char> room() = 0;
  /// Bytes of the body, maybe where room() is already.
  virtual void on_data(std::string_view bytes) = 0;
  /// The client has sent all it wants to.
  virtual void on_end() = 0;
  virtual void on_close() = 0;
  /// So many bytes of the answer's body have left by now.
  virtual void on_sent(uint64_t /*bytes*/) {}
  /// Called now and then: deadlines are looked at.
  virtual void on_tick(int64_t /*now_ns*/) {}
  /// The server is about to end.
  virtual void on_drain() {}

 private:
  friend class Http2Streams;
  int32_t id_ = 0;
  size_t at_ = 0;  // place in the list of open streams
  Http2Answer answer_;
  size_t field_bytes_ = 0, kept_field_bytes_ = 0, held_bytes_ = 0;
  int64_t opened_ns_ = 0;
  bool has_begun_ = false, has_ended_ = false;  // the client's side
  bool is_held_ = false;
};

}  // namespace trireme::http
