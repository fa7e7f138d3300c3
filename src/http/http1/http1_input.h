// Internal to the HTTP server: what an HTTP/1.1 client sends, on its way from the socket to requests.
#pragma once

#include <cstddef>
#include <cstdint>

#include "http/parser.h"
#include "http/socket.h"

namespace trireme::http {

/// The bytes of a connection as they come, and the request that they are becoming. A body whose length is
/// known is read to its place; everything else is read ahead, by little more than a head may have, and parsed
/// from there. Work follows the bytes: what has been searched is not searched again, and memory grows by
/// doubling.
class Http1Input {
 public:
  Http1Input(Socket& socket, const Limits& limits);

  /// Readiness is edge-triggered: the socket has bytes until a read says otherwise.
  bool readable() const { return readable_; }
  void on_readable() { readable_ = true; }
  /// The peer has sent its end; reads go on until they see it.
  void on_hang_up() { hung_up_ = true; }
  bool hung_up() const { return hung_up_; }
  /// The end was read, or the connection has closed.
  bool has_ended() const { return has_ended_; }
  void end() { has_ended_ = true, readable_ = false; }

  /// There is room to read ahead, `takes_requests` or not.
  bool has_room(bool takes_requests) const;
  enum class Read : uint8_t { some, nothing, end, broken };
  /// One read, into the body itself if `takes_requests` and its length is known.
  Read read(bool takes_requests);
  /// Reads and forgets; `some`: there may be more. `end`, too, of a peer that sends without end.
  Read discard();

  enum class Parsed : uint8_t { nothing, part, request, refused };
  /// Goes on in the bytes received: to the end of a head, of a request, or of what is there. Until compact()
  /// the bytes that were used stay where they are.
  Parsed parse(int64_t now_ns);
  void compact();
  /// Gives the finished request.
  Request take();
  const RequestParser& parser() const { return parser_; }
  bool is_within_body() const { return parser_.state() == RequestParser::State::body; }
  /// Nothing waits to be parsed.
  bool empty() const { return received_.size() == used_; }
  /// What was received of the request goes, and nothing is parsed any more; so does what waits to be parsed.
  void drop_request();
  void drop_received();

  /// The client waits for `100 Continue`, which is due once all earlier answers are written; asking again
  /// gives false.
  bool take_continue();

 private:
  Socket& socket_;
  RequestParser parser_;
  const size_t most_ahead_bytes_;
  Bytes received_;
  size_t used_ = 0;  // of received_
  bool readable_ = true;
  bool hung_up_ = false;
  bool has_ended_ = false;
  bool continue_due_ = false;
  int64_t begun_ns_ = 0;  // when the first bytes of the request being read were there; 0: none are
  size_t discarded_bytes_ = 0;
};

}  // namespace trireme::http
