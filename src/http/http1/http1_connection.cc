// One HTTP/1.1 connection: parses ahead, dispatches requests, writes answers in order, enforces deadlines,
// and closes without losing bytes.
#include "http/http1/http1_connection.h"

#include <sys/epoll.h>

#include <algorithm>
#include <exception>
#include <new>
#include <optional>

#include "http/coding.h"
#include "http/http1/http1_answer.h"
#include "http/loop.h"
#include "http/pace.h"

namespace trireme::http {
namespace {

constexpr size_t kOutputWindow = size_t{1} << 20;  // with more unsent bytes, no further requests are accepted
constexpr size_t kSmallRestBytes = size_t{64} << 10;
constexpr size_t kWakeBytes = size_t{1} << 20;
constexpr int kReadsPerTurn = 32;  // then other connections get their turn

PaceLimits reading_pace(const ServerOptions& options) {
  return {.grace_ns = to_ns(options.write_timeout), .bytes_per_second = options.min_body_rate};
}

/// Decodes the body in place according to its Content-Encoding, or returns the answer that refuses it.
std::optional<Response> decode_body(Request& request, size_t max_body_bytes) {
  const std::string_view coding = request.header("Content-Encoding");
  if (coding.empty() || iequals(coding, "identity")) return std::nullopt;
  if (!iequals(coding, "gzip") && !iequals(coding, "deflate") && !iequals(coding, "x-gzip")) {
    Response refusal = error_response(501, base::concat("content coding is not supported: ", coding));
    refusal.headers.emplace_back("Accept-Encoding", "gzip, deflate");
    return refusal;
  }
  const size_t most = most_inflated(request.body.size(), max_body_bytes);
  std::optional<Bytes> plain = inflate_within(request.body.view(), most);
  if (!plain) {
    return error_response(
        413,
        base::concat("decompressed request body exceeds the maximum allowed input size of ", most, " bytes"));
  }
  request.body = std::move(*plain);
  return std::nullopt;
}

// A handler that throws usually still holds its reply, or dropped it while unwinding: then `response` is
// sent. If it had passed the reply on, the answer comes from the new holder.
void answer_thrown(Exchange& exchange, Reply& reply, Response response) {
  if (reply) {
    reply.send(std::move(response));
  } else if (exchange.dropped) {
    exchange.response = std::move(response);
  }
}

}  // namespace

Http1Connection::Http1Connection(Loop& loop, Descriptor fd)
    : loop_(loop),
      socket_(std::move(fd), loop.shared().tls.get()),
      is_local_(socket_.is_local()),
      input_(socket_, loop.shared().options.limits),
      clock_(loop.now_ns()) {}

Http1Connection::~Http1Connection() { close(); }

void Http1Connection::on_events(uint32_t events) {
  if (closed()) return;
  if ((events & (EPOLLERR | EPOLLHUP)) != 0) return close();
  const bool any = socket_.is_tls();  // a TLS read may have to wait for a write, and vice versa
  if (any || (events & (EPOLLIN | EPOLLRDHUP)) != 0) input_.on_readable();
  if (any || (events & EPOLLOUT) != 0) out_.open();
  if ((events & EPOLLRDHUP) != 0) input_.on_hang_up();
  advance();
}

void Http1Connection::advance() {
  if (closed() || advancing_) return;
  advancing_ = true;
  for (int reads = 0; !closed();) {
    if (ending_ == Ending::lingering) {
      // Closing with unread input resets the connection, which may destroy the answer in transit: read until
      // the peer closes.
      const Http1Input::Read read = input_.discard();
      if (read == Http1Input::Read::end) close();
      if (read == Http1Input::Read::some) loop_.revisit(*this);
      break;
    }
    emit_ready();
    if (out_.bytes() > kOutputWindow) flush();
    if (closed()) break;
    if (read_or_parse(false)) continue;
    if (!may_read()) break;
    if (reads++ == kReadsPerTurn) {
      loop_.revisit(*this);
      break;
    }
    if (!read_or_parse(true)) break;
  }
  // A peer that hung up has left, even if more input waits than is read ahead.
  if (!closed() && input_.hung_up()) tell_gone();
  if (!closed()) finish_turn();
  advancing_ = false;
}

bool Http1Connection::accepts_requests() const {
  if (ending_ != Ending::no || out_.bytes() > kOutputWindow) return false;
  if (answers_.empty() || input_.is_within_body()) return true;
  const ServerOptions& options = loop_.shared().options;
  return answers_.size() < options.max_pipelined && answers_.held_bytes() < options.max_held_bytes;
}

bool Http1Connection::may_read() const {
  const bool accepts = accepts_requests();
  const bool is_open = input_.readable() && !input_.has_ended() && !input_suspect_;
  return is_open && input_.has_room(accepts) && (accepts || input_.hung_up());
}

/// Parses received bytes, or reads more; true on progress. If memory runs out, the request is answered and
/// the connection ends: the rest of the request is not read, and the received part is freed at once.
bool Http1Connection::read_or_parse(bool reads) {
  try {
    return reads ? read_some() : parse_received();
  } catch (const base::Error& error) {
    if (error.code() != base::ErrorCode::exhausted || ending_ != Ending::no) throw;
    input_.drop_received();
    answer_last(error_response(error));
    return true;
  }
}

bool Http1Connection::read_some() {
  switch (input_.read(accepts_requests())) {
    case Http1Input::Read::some: return true;
    case Http1Input::Read::nothing: return false;
    case Http1Input::Read::broken: close(); return false;
    case Http1Input::Read::end:
      // The client has left, or at least sends no more: answers are still written if possible.
      input_.end();
      tell_gone();
      return false;
  }
  return false;
}

bool Http1Connection::parse_received() {
  using Parsed = Http1Input::Parsed;
  bool moved = false;
  while (!closed() && accepts_requests()) {
    const Parsed parsed = input_.parse(loop_.now_ns());
    if (parsed == Parsed::nothing) break;
    moved = true;
    if (parsed == Parsed::request) {
      dispatch();
      emit_ready();
    } else if (parsed == Parsed::refused) {
      const ParseError& error = input_.parser().error();
      answer_malformed(error.status, error.message);
    }
  }
  input_.compact();
  if (answers_.empty() && ending_ == Ending::no && input_.take_continue())
    out_.queue().text() += "HTTP/1.1 100 Continue\r\n\r\n";
  return moved;
}

Exchange& Http1Connection::new_exchange() {
  auto* exchange = new Exchange;
  exchange->mailbox = loop_.mailbox();
  exchange->connection = this;
  exchange->compress_min_bytes = loop_.shared().options.compress_min_bytes;
  answers_.push(*exchange);
  return *exchange;
}

void Http1Connection::dispatch() {
  Shared& shared = loop_.shared();
  Exchange& exchange = new_exchange();
  exchange.http10 = input_.parser().is_http10();
  exchange.keep_alive = input_.parser().keep_alive() && !loop_.draining();
  clock_.renew();
  Request request = input_.take();
  request.received_ns = steady_ns();
  request.is_local = is_local_;
  if (request.body.size() > kSmallRestBytes) loop_.takes_bulk();
  exchange.head_request = request.method == "HEAD";
  exchange.accepts = accepted_coding(request.header("Accept-Encoding"));
  answers_.hold_request(exchange, request.body.capacity());
  if (!exchange.keep_alive) end_by(Ending::decided);
  Reply reply{ExchangeRef(&exchange)};
  try {
    if (auto refusal = decode_body(request, shared.options.limits.max_body_bytes))
      return reply.send(std::move(*refusal));
    answers_.hold_request(exchange, request.body.capacity());
    shared.counts.requests.fetch_add(1, std::memory_order_relaxed);
    shared.handler(std::move(request), std::move(reply));
  } catch (const base::Error& error) {
    answer_thrown(exchange, reply, error_response(error));
  } catch (const std::bad_alloc&) {
    answer_thrown(exchange, reply, error_response(503, "out of memory while reading the request"));
  } catch (const std::exception& error) {
    answer_thrown(exchange, reply, error_response(500, error.what()));
  }
}

// After a malformed request, the following bytes cannot be interpreted: this is the connection's last answer.
void Http1Connection::answer_malformed(int status, std::string message) {
  loop_.shared().counts.malformed.fetch_add(1, std::memory_order_relaxed);
  answer_last(error_response(status, message));
}

void Http1Connection::answer_last(Response response) {
  input_.drop_request();
  Exchange& exchange = new_exchange();
  exchange.release();  // no sink will refer to it
  exchange.keep_alive = false;
  exchange.response = std::move(response);
  exchange.ready = true;
  end_by(Ending::decided);
  input_suspect_ = true;
}

void Http1Connection::apply(Exchange& exchange, Step step, std::string&& piece) {
  answers_.apply(exchange, step, std::move(piece));
  if (!advancing_) loop_.revisit(*this);
}

void apply_step(Exchange* exchange, Step step, std::string&& piece) {
  if (exchange->connection != nullptr) exchange->connection->apply(*exchange, step, std::move(piece));
}

void cut_off(Exchange* exchange) {
  if (exchange->connection != nullptr) exchange->connection->close();
}

// Moves the finished answers at the front of the queue to the output.
void Http1Connection::emit_ready() {
  while (!answers_.empty() && answers_.front().ready && !closed()) {
    if (!emit_front()) return;
  }
}

/// Returns true if the whole first answer is in the output and its exchange was released.
bool Http1Connection::emit_front() {
  Exchange& exchange = answers_.front();
  if (loop_.draining() && exchange.keep_alive && answers_.has_one() && !exchange.head_written) {
    exchange.keep_alive = false;
    end_by(Ending::decided);
    input_suspect_ = true;
  }
  if (exchange.streaming) {
    if (!write_stream(exchange, loop_.date_line(), out_.queue())) return false;
  } else {
    write_answer(exchange, loop_.date_line(), out_.queue());
  }
  const bool is_last = !exchange.keep_alive;
  answers_.pop();
  clock_.renew();
  if (is_last) {
    end_by(Ending::written);
    drop_answers();
  }
  return true;
}

/// Drops the remaining answers. After a stream that broke off, or one that ends with the connection, the
/// client would take them for a part of its body.
void Http1Connection::drop_answers() {
  if (!answers_.empty() || input_.is_within_body()) input_suspect_ = true;
  tell_gone();
  while (!answers_.empty()) answers_.pop();
}

void Http1Connection::tell_gone() {
  loop_.shared().counts.gone.fetch_add(answers_.tell_gone(), std::memory_order_relaxed);
}

void Http1Connection::flush() {
  if (closed()) return;
  if (!out_.flush(socket_, reading_pace(loop_.shared().options), loop_.now_ns())) close();
}

// Writes the pending output and decides whether the connection ends now.
void Http1Connection::finish_turn() {
  flush();
  if (!closed() && !out_.account()) close();
  if (closed() || (out_.empty() && end_if_answered())) return;
  const Http1Phase now = phase();
  // If each piece of a large body woke the server, waking would cost more than reading.
  const size_t missing = now == Http1Phase::body ? input_.parser().body_missing() : 0;
  if (missing > kSmallRestBytes) loop_.takes_bulk();
  socket_.wake_at(missing > kSmallRestBytes ? std::min(missing, kWakeBytes) : 1);
  clock_.enter(now, loop_.now_ns());
}

/// Called when all output is sent. Returns true if the connection closes now; else it continues or lingers.
bool Http1Connection::end_if_answered() {
  if (!answers_.empty()) {
    // What a full queue held back goes now: an empty one makes the socket tell no more.
    const Exchange& first = answers_.front();
    const bool has_more = !first.pieces.empty() || first.finished || first.aborted;
    if (first.streaming && has_more) loop_.revisit(*this);
    return false;
  }
  const bool is_last = ending_ == Ending::written;
  if (input_.has_ended() || (is_last && !input_suspect_ && input_.empty())) {
    close();
    return true;
  }
  if (is_last) {
    socket_.shutdown_write();
    end_by(Ending::lingering);
    loop_.revisit(*this);
  }
  return false;
}

Http1Phase Http1Connection::phase() const {
  if (ending_ == Ending::lingering) return Http1Phase::linger;
  if (input_.is_within_body()) return Http1Phase::body;
  return input_.empty() ? Http1Phase::idle : Http1Phase::head;
}

int64_t Http1Connection::deadline_ns() const {
  const ServerOptions& options = loop_.shared().options;
  if (out_.is_stuck()) {
    // Reading clients must keep the same pace as sending ones; while memory is tight, silence also ends them.
    return out_.due_ns(base::process_memory().is_tight() ? to_ns(options.tight_timeout) : Pace::kNever);
  }
  // The time that a handler takes is not limited here.
  if (clock_.phase() != Http1Phase::linger && !answers_.empty()) return Pace::kNever;
  return clock_.due_ns(options, input_.parser().body_received(), loop_.draining(), loop_.drain_began_ns());
}

void Http1Connection::check_deadline() {
  const auto is_due = [&] { return !closed() && loop_.now_ns() >= deadline_ns(); };
  if (!is_due()) return;
  if (clock_.phase() == Http1Phase::body && !input_.readable()) {
    // Bytes too few to raise an event may wait in the socket; they count for the client's pace.
    input_.on_readable();
    advance();
    if (!is_due()) return;
  }
  const Http1Phase now = clock_.phase();
  const bool mid_request =
      answers_.empty() && out_.empty() && (now == Http1Phase::head || now == Http1Phase::body);
  if (!loop_.draining() || now != Http1Phase::idle)
    loop_.shared().counts.timeouts.fetch_add(1, std::memory_order_relaxed);
  if (!mid_request || ending_ != Ending::no) return close();
  answer_malformed(408, "request did not arrive in time");
  advance();
}

void Http1Connection::close() {
  if (closed()) return;
  input_.end();
  drop_answers();
  ending_ = Ending::closed;
  loop_.retire(*this);
}

}  // namespace trireme::http
