// Internal to the HTTP server: one client connection as a state machine over readiness events.
#pragma once

#include <cstdint>
#include <string>

#include "http/http1/answer_queue.h"
#include "http/http1/http1_input.h"
#include "http/http1/http1_phase.h"
#include "http/loop_connection.h"
#include "http/outflow.h"
#include "http/socket.h"

namespace trireme::http {

class Loop;

/// Owned by one loop and touched only on its thread. Requests are parsed ahead and handed to the handler at
/// once; answers leave in request order whatever order they come in:
///
///     socket -> input_ (bytes -> requests) -> handler ... -> answers_ (in order) -> out_ -> socket
///
/// A turn, advance(), moves all of them until nothing moves. How the connection ends is `ending_`, which only
/// grows: no -> the last answer is decided -> and written -> the peer's rest is read away -> closed.
class Http1Connection final : public LoopConnection {
 public:
  Http1Connection(Loop& loop, Descriptor fd);
  ~Http1Connection() override;
  Http1Connection(const Http1Connection&) = delete;
  Http1Connection& operator=(const Http1Connection&) = delete;

  bool closed() const override { return ending_ == Ending::closed; }
  void on_events(uint32_t events) override;
  /// Parse, answer, read, write.
  void advance() override;
  /// Closes or answers 408 if the deadline has passed.
  void check_deadline() override;
  void close() override;
  /// What an exchange's sink says.
  void apply(Exchange& exchange, Step step, std::string&& piece);

 private:
  /// `decided`: no request is taken after the one whose answer says `Connection: close`. `written`: that
  /// answer is in out_, and nothing follows it. `lingering`: it has left, and what the peer still sends is
  /// read so that the answer is not lost.
  enum class Ending : uint8_t { no, decided, written, lingering, closed };

  // Requests.
  bool accepts_requests() const;
  bool may_read() const;
  bool read_or_parse(bool reads);
  bool read_some();
  bool parse_received();
  void dispatch();
  Exchange& new_exchange();
  // Answers.
  void answer_last(Response response);
  void answer_malformed(int status, std::string message);
  void emit_ready();
  bool emit_front();
  void drop_answers();
  void flush();
  // The end of a turn, and of the connection.
  void finish_turn();
  bool end_if_answered();
  Http1Phase phase() const;
  int64_t deadline_ns() const;
  void tell_gone();
  void end_by(Ending ending) { ending_ = ending > ending_ ? ending : ending_; }

  Loop& loop_;
  Socket socket_;
  const bool is_local_;  // so is the peer
  Http1Input input_;
  AnswerQueue answers_;
  Outflow out_;
  Http1PhaseClock clock_;
  Ending ending_ = Ending::no;
  bool input_suspect_ =
      false;  // what the peer still sends means nothing, and would cost it the answer: linger
  bool advancing_ = false;
};

}  // namespace trireme::http
