// Internal to the HTTP server: one client connection as a state machine over readiness events.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "serve/http_exchange.h"
#include "serve/http_parser.h"
#include "serve/http_reply.h"
#include "serve/http_socket.h"
#include "serve/loop_connection.h"

namespace trireme::serve {

class HttpLoop;

/// Owned by one loop and touched only on its thread. Requests are parsed ahead and handed to the handler at
/// once; answers leave in request order whatever order they come in.
class HttpConnection final : public LoopConnection {
 public:
  HttpConnection(HttpLoop& loop, int fd);
  ~HttpConnection() override;
  HttpConnection(const HttpConnection&) = delete;
  HttpConnection& operator=(const HttpConnection&) = delete;

  int fd() const { return socket_.fd(); }
  bool closed() const override { return closed_; }

  void on_events(uint32_t events) override;
  /// Parse, answer, read, write.
  void advance() override;
  /// Closes or answers 408 if the deadline has passed.
  void check_deadline() override;
  void apply(HttpExchange& exchange, HttpStep step, std::string&& piece);
  void close() override;

 private:
  bool parse_buffered();
  void dispatch();
  void answer_malformed(int status, std::string message);
  HttpExchange* new_exchange();
  bool decode_body(HttpRequest& request, HttpReply& reply);
  static void answer_thrown(HttpExchange& exchange, HttpReply& reply, HttpResponse response);
  void emit_ready();
  void write_head(HttpExchange& exchange, size_t body_bytes);
  bool emit_stream(HttpExchange& exchange);
  void pop_exchange();
  bool accepts_requests() const;
  bool read_some();
  void flush();
  void finish_turn();
  void on_eof();
  void tell_gone();
  void discard_input();
  enum class Phase : uint8_t { idle, head, body, linger };
  Phase phase() const;
  int64_t deadline_ns() const;

  HttpLoop& loop_;
  HttpSocket socket_;
  HttpRequestParser parser_;
  HttpBytes in_;  // received, not parsed
  HttpOutput out_;
  HttpExchange* first_ = nullptr;  // in request order; the connection holds one count of each
  HttpExchange* last_ = nullptr;
  int in_flight_ = 0;
  bool readable_ = true;  // until a read says otherwise (edge-triggered)
  bool writable_ = true;
  bool hung_up_ = false;  // the peer has sent its end; reads go on until they see it
  bool eof_ = false;
  bool closed_ = false;
  bool advancing_ = false;
  bool no_more_requests_ = false;  // the answer that says `Connection: close` is decided
  bool close_when_flushed_ = false;
  bool input_suspect_ = false;  // unread input may still come: linger so that the client gets the answer
  bool lingering_ = false;
  bool continue_due_ = false;  // `100 Continue` waits for earlier answers
  size_t lingered_bytes_ = 0;
  Phase last_phase_ = Phase::idle;
  bool request_finished_ = false;  // in this turn: the phase begins anew
  int64_t phase_began_ns_ = 0;
  int64_t write_progress_ns_ = 0;
};

}  // namespace trireme::serve
