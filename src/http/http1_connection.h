// Internal to the HTTP server: one client connection as a state machine over readiness events.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "http/exchange.h"
#include "http/pace.h"
#include "http/parser.h"
#include "http/reply.h"
#include "http/socket.h"
#include "http/loop_connection.h"

namespace trireme::http {

class Loop;

/// Owned by one loop and touched only on its thread. Requests are parsed ahead and handed to the handler at
/// once; answers leave in request order whatever order they come in.
class Http1Connection final : public LoopConnection {
 public:
  Http1Connection(Loop& loop, Descriptor fd);
  ~Http1Connection() override;
  Http1Connection(const Http1Connection&) = delete;
  Http1Connection& operator=(const Http1Connection&) = delete;

  int fd() const { return socket_.fd(); }
  bool closed() const override { return closed_; }

  void on_events(uint32_t events) override;
  /// Parse, answer, read, write.
  void advance() override;
  /// Closes or answers 408 if the deadline has passed.
  void check_deadline() override;
  void apply(Exchange& exchange, Step step, std::string&& piece);
  void close() override;

 private:
  bool parse_buffered();
  void dispatch();
  void answer_malformed(int status, std::string message);
  void answer_last(Response response);
  void refuse_body(const base::Error& error);
  bool read_or_parse(bool reads);
  void hold(Exchange& exchange, size_t bytes);
  Exchange* new_exchange();
  bool decode_body(Request& request, Reply& reply);
  static void answer_thrown(Exchange& exchange, Reply& reply, Response response);
  void emit_ready();
  void write_head(Exchange& exchange, size_t body_bytes);
  bool emit_stream(Exchange& exchange);
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

  Loop& loop_;
  Socket socket_;
  const bool is_local_;  // so is the peer
  RequestParser parser_;
  Bytes in_;  // received, not parsed
  Output out_;
  Exchange* first_ = nullptr;  // in request order; the connection holds one count of each
  Exchange* last_ = nullptr;
  int in_flight_ = 0;
  size_t held_bytes_ = 0;     // of all exchanges
  size_t largest_bytes_ = 0;  // of an answer so far
  base::MemoryLease out_lease_{base::MemoryUse::answers,
                               0};  // of text in out_ that its reader is slow to take
  bool readable_ = true;            // until a read says otherwise (edge-triggered)
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
  int64_t begun_ns_ = 0;  ///< when the first bytes of the request being read were there; 0: none are
  Pace reading_;          ///< of what is in out_
  uint64_t written_bytes_ = 0;
};

}  // namespace trireme::http
