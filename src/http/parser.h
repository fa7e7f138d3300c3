// Incremental HTTP/1.1 message parsing over Beast's parser; all of the bytes of one message in, one value
// out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "http/message.h"

namespace trireme::http {

struct Limits {
  size_t max_header_bytes = size_t{32} << 10;
  size_t max_headers = 100;
  size_t max_body_bytes = size_t{64} << 20;
  /// Names the header whose number says where in the body binary data begins: it is received to a 64-byte
  /// boundary, so that it is computed with where it lies.
  std::string_view binary_offset_header = "Inference-Header-Content-Length";
};

/// Why a message was refused; status 0 means no error.
struct ParseError {
  int status = 0;
  std::string message;
  explicit operator bool() const { return status != 0; }
};

/// Reads one request at a time from a connection's bytes. Strict: conflicting lengths, bare line feeds,
/// folded headers, unknown transfer codings and a missing or repeated Host are refused, so that no proxy in
/// front can be made to disagree about where a request ends.
class RequestParser {
 public:
  explicit RequestParser(const Limits& limits);
  ~RequestParser();

  enum class State { head, body, done, failed };
  State state() const;

  /// Consumes what it can of `input` and returns how many bytes that was. Stops at the end of the head (so
  /// that the caller can answer Expect) and at the end of the message.
  size_t feed(std::string_view input);

  /// With a known length, the place and size of the body bytes still missing: read there and call
  /// body_filled().
  char* body_tail(size_t& missing);
  /// Body bytes that a known length still promises; 0 without one.
  size_t body_missing() const;
  void body_filled(size_t bytes);

  bool expects_continue() const;
  bool keep_alive() const;
  bool is_http10() const;
  const ParseError& error() const;
  /// Bytes of the body so far, for the pace that a slow client must keep.
  size_t body_received() const;

  /// Lets go of an unfinished body; the parser is of no more use.
  void drop_body();
  /// Hands the finished request over and starts on the next one.
  Request take();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// A received response.
struct Received {
  int status = 0;
  std::vector<std::pair<std::string, std::string>> headers;
  std::string body;
  bool keep_alive = true;

  std::string_view header(std::string_view name) const;
};

/// Reads one response at a time. Interim 1xx responses are skipped.
class ResponseParser {
 public:
  explicit ResponseParser(size_t max_body_bytes = size_t{1} << 30);
  ~ResponseParser();

  /// Forgets everything; `head_request` responses have no body.
  void reset(bool head_request = false);
  /// Consumes what it can and returns the count. Throws unavailable if the bytes are not HTTP or exceed the
  /// limit.
  size_t feed(std::string_view input);
  /// Says that the peer closed; completes a body that ends with the connection, throws unavailable otherwise.
  void feed_eof();
  bool done() const;
  bool head_done() const;
  /// Keeps only the length of the body (load generation), not its bytes.
  void discard_body(bool on);
  /// Body bytes so far, kept or not.
  size_t body_bytes() const;
  Received& message();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace trireme::http
