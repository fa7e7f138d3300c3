// One HTTP connection: parse ahead, dispatch, write answers in order, keep deadlines, close without losing
// bytes.
#include "http/http1_connection.h"

#include <sys/epoll.h>

#include <algorithm>
#include <charconv>
#include <exception>
#include <new>
#include <span>

#include "http/coding.h"
#include "http/loop.h"

namespace trireme::http {
namespace {

constexpr size_t kReadBytes = size_t{16} << 10;
constexpr size_t kGatherBytes = size_t{32} << 10;    // bodies up to this size are copied behind their head
constexpr size_t kOutputWindow = size_t{1} << 20;    // unsent bytes that stop the taking of further requests
constexpr size_t kStreamWindow = size_t{256} << 10;  // unsent bytes that hold back stream pieces
constexpr size_t kLingerBytes = size_t{64} << 20;
constexpr size_t kSmallRestBytes = size_t{64} << 10;
constexpr size_t kWakeBytes = size_t{1} << 20;
constexpr int64_t kLingerNs = 2'000'000'000;
constexpr int kReadsPerTurn = 32;  // then other connections have their turn

int64_t to_ns(std::chrono::milliseconds t) { return t.count() * 1'000'000; }

PaceLimits reading_pace(const ServerOptions& options) {
  return {.grace_ns = to_ns(options.write_timeout), .bytes_per_second = options.min_body_rate};
}

void append_number(std::string& out, size_t value, int base = 10) {
  char digits[24];
  const auto end = std::to_chars(digits, digits + sizeof digits, value, base).ptr;
  out.append(digits, end);
}

// A line break in a header value would let a handler's data forge headers.
bool is_header_safe(std::string_view text) {
  return text.find_first_of(std::string_view("\r\n\0", 3)) == text.npos;
}

bool is_framing_header(std::string_view name) {
  return iequals(name, "Content-Length") || iequals(name, "Transfer-Encoding") ||
         iequals(name, "Connection") || iequals(name, "Date");
}

}  // namespace

Http1Connection::Http1Connection(Loop& loop, Descriptor fd)
    : loop_(loop),
      socket_(std::move(fd), loop.shared().tls.get()),
      is_local_(socket_.is_local()),
      parser_(loop.shared().options.limits),
      phase_began_ns_(loop.now_ns()) {}

Http1Connection::~Http1Connection() { close(); }

void Http1Connection::on_events(uint32_t events) {
  if (closed_) return;
  if ((events & (EPOLLERR | EPOLLHUP)) != 0) {
    close();
    return;
  }
  const bool any = socket_.is_tls();  // a TLS read may wait for a write and the reverse
  if (any || (events & (EPOLLIN | EPOLLRDHUP)) != 0) readable_ = true;
  if (any || (events & EPOLLOUT) != 0) writable_ = true;
  if ((events & EPOLLRDHUP) != 0) hung_up_ = true;
  advance();
}

void Http1Connection::advance() {
  if (closed_ || advancing_) return;
  advancing_ = true;
  for (int reads = 0; !closed_;) {
    if (lingering_) {
      discard_input();
      break;
    }
    emit_ready();
    if (out_.bytes() > kOutputWindow) flush();
    if (closed_) break;
    if (read_or_parse(false)) continue;
    // A head is parsed once it is whole: up to its limit, which the parser refuses beyond, all of it must
    // fit.
    const size_t ahead = accepts_requests()
                             ? std::max(kReadBytes, loop_.shared().options.limits.max_header_bytes + 1)
                             : kReadBytes;
    const bool room = parser_.state() == RequestParser::State::body || in_.size() < ahead;
    if (!readable_ || eof_ || input_suspect_ || !room) break;
    if (!accepts_requests() && !hung_up_) break;
    if (reads++ == kReadsPerTurn) {
      loop_.revisit(*this);
      break;
    }
    if (!read_or_parse(true)) break;
  }
  // A peer that hung up behind more input than is read ahead has gone all the same.
  if (!closed_ && hung_up_) tell_gone();
  if (!closed_) finish_turn();
  advancing_ = false;
}

/// Parses what is there, or reads more; a request that finds no memory is answered and ends the connection.
bool Http1Connection::read_or_parse(bool reads) {
  try {
    return reads ? read_some() : parse_buffered();
  } catch (const base::Error& error) {
    if (error.code() != base::ErrorCode::exhausted || no_more_requests_) throw;
    refuse_body(error);
    return true;
  }
}

bool Http1Connection::accepts_requests() const {
  if (no_more_requests_ || out_.bytes() > kOutputWindow) return false;
  if (in_flight_ == 0 || parser_.state() == RequestParser::State::body) return true;
  return in_flight_ < loop_.shared().options.max_pipelined &&
         held_bytes_ < loop_.shared().options.max_held_bytes;
}

/// Until an answer comes, its request stands for an answer as large as the largest.
void Http1Connection::hold(Exchange& exchange, size_t bytes) {
  held_bytes_ = held_bytes_ - exchange.held_bytes + bytes;
  exchange.held_bytes = bytes;
}

// Feeds what has been received to the parser; true if anything moved.
bool Http1Connection::parse_buffered() {
  bool moved = false;
  size_t used = 0;
  using State = RequestParser::State;
  while (!closed_ && accepts_requests()) {
    const State before = parser_.state();
    if (begun_ns_ == 0 && in_.size() > used) begun_ns_ = loop_.now_ns();
    const size_t step = parser_.feed(in_.view().substr(used));
    used += step;
    if (before == State::head && parser_.state() == State::body && parser_.expects_continue())
      continue_due_ = true;
    if (parser_.state() == State::failed) {
      answer_malformed(parser_.error().status, parser_.error().message);
      moved = true;
      break;
    }
    if (parser_.state() == State::done) {
      dispatch();
      emit_ready();
      moved = true;
      continue;
    }
    if (step == 0 && parser_.state() == before) break;
    moved = true;
  }
  if (used > 0) in_.erase_front(used);
  if (continue_due_ && first_ == nullptr && !no_more_requests_) {
    continue_due_ = false;
    if (parser_.state() == State::body && in_.empty()) out_.text() += "HTTP/1.1 100 Continue\r\n\r\n";
  }
  return moved;
}

Exchange* Http1Connection::new_exchange() {
  auto* exchange = new Exchange;
  exchange->mailbox = loop_.mailbox();
  exchange->connection = this;
  exchange->compress_min_bytes = loop_.shared().options.compress_min_bytes;
  (last_ != nullptr ? last_->next : first_) = exchange;
  last_ = exchange;
  ++in_flight_;
  return exchange;
}

void Http1Connection::dispatch() {
  Shared& shared = loop_.shared();
  Exchange* exchange = new_exchange();
  exchange->http10 = parser_.is_http10();
  exchange->keep_alive = parser_.keep_alive() && !loop_.draining();
  request_finished_ = true;
  continue_due_ = false;
  Request request = parser_.take();
  request.begun_ns = std::exchange(begun_ns_, 0);
  request.received_ns = steady_ns();
  request.is_local = is_local_;
  if (request.body.size() > kSmallRestBytes) loop_.takes_bulk();
  exchange->head_request = request.method == "HEAD";
  exchange->accepts = accepted_coding(request.header("Accept-Encoding"));
  hold(*exchange, request.body.capacity() + largest_bytes_);
  if (!exchange->keep_alive) no_more_requests_ = true;
  Reply reply{ExchangeRef(exchange)};
  try {
    if (!decode_body(request, reply)) return;
    hold(*exchange, request.body.capacity() + largest_bytes_);
    shared.counts.requests.fetch_add(1, std::memory_order_relaxed);
    shared.handler(std::move(request), std::move(reply));
  } catch (const base::Error& error) {
    answer_thrown(*exchange, reply, error_response(error));
  } catch (const std::bad_alloc&) {
    answer_thrown(*exchange, reply, error_response(503, "out of memory while reading the request"));
  } catch (const std::exception& error) {
    answer_thrown(*exchange, reply, error_response(500, error.what()));
  }
}

// A handler that throws has dropped its reply while unwinding (or never got it); if it had handed it on, the
// answer comes from there.
void Http1Connection::answer_thrown(Exchange& exchange, Reply& reply, Response response) {
  if (reply) {
    reply.send(std::move(response));
  } else if (exchange.dropped) {
    exchange.response = std::move(response);
  }
}

// Undoes the content coding in place. False if it answered instead.
bool Http1Connection::decode_body(Request& request, Reply& reply) {
  const std::string_view coding = request.header("Content-Encoding");
  if (coding.empty() || iequals(coding, "identity")) return true;
  if (!iequals(coding, "gzip") && !iequals(coding, "deflate") && !iequals(coding, "x-gzip")) {
    Response refusal = error_response(501, base::concat("content coding is not supported: ", coding));
    refusal.headers.emplace_back("Accept-Encoding", "gzip, deflate");
    reply.send(std::move(refusal));
    return false;
  }
  const size_t most = most_inflated(request.body.size(), loop_.shared().options.limits.max_body_bytes);
  std::optional<Bytes> plain = inflate_within(request.body.view(), most);
  if (plain) {
    request.body = std::move(*plain);
    return true;
  }
  reply.send(error_response(
      413,
      base::concat("decompressed request body exceeds the maximum allowed input size of ", most, " bytes")));
  return false;
}

// The bytes after a malformed request mean nothing: this is the connection's last answer.
void Http1Connection::answer_malformed(int status, std::string message) {
  loop_.shared().counts.malformed.fetch_add(1, std::memory_order_relaxed);
  answer_last(error_response(status, message));
}

/// The rest of the request is not read, and what there is of it goes now.
void Http1Connection::refuse_body(const base::Error& error) {
  Bytes().swap(in_);
  answer_last(error_response(error));
}

void Http1Connection::answer_last(Response response) {
  parser_.drop_body();
  Exchange* exchange = new_exchange();
  exchange->release();  // no sink
  exchange->keep_alive = false;
  exchange->response = std::move(response);
  exchange->ready = true;
  no_more_requests_ = true;
  input_suspect_ = true;
  continue_due_ = false;
}

void Http1Connection::apply(Exchange& exchange, Step step, std::string&& piece) {
  switch (step) {
    case Step::drop:
      exchange.dropped = exchange.ready = true;
      exchange.response.status = 500;
      try {
        exchange.response = error_response(500, "request was dropped without an answer");
      } catch (const std::bad_alloc&) {
        // No memory for the words: the status is all.
      }
      break;
    case Step::respond:
      exchange.ready = true;
      hold(exchange, exchange.response.body_bytes());
      largest_bytes_ = std::max(largest_bytes_, exchange.held_bytes);
      break;
    case Step::start_stream: exchange.ready = exchange.streaming = true; break;
    case Step::piece:
      exchange.pieces_lease.resize(static_cast<int64_t>(exchange.pieces.size() + piece.size()));
      if (exchange.pieces.empty()) {
        exchange.pieces = std::move(piece);
      } else {
        exchange.pieces += piece;
      }
      break;
    case Step::finish: exchange.finished = true; break;
    case Step::abort: exchange.aborted = true; break;
  }
  if (!advancing_) loop_.revisit(*this);
}

void apply_step(Exchange* exchange, Step step, std::string&& piece) {
  if (exchange->connection != nullptr) exchange->connection->apply(*exchange, step, std::move(piece));
}

void cut_off(Exchange* exchange) {
  if (exchange->connection != nullptr) exchange->connection->close();
}

// Moves every answer whose turn has come to the output.
void Http1Connection::emit_ready() {
  while (first_ != nullptr && first_->ready && !closed_) {
    Exchange& exchange = *first_;
    if (loop_.draining() && exchange.keep_alive && last_ == first_ && !exchange.head_written) {
      exchange.keep_alive = false;
      no_more_requests_ = true;
      input_suspect_ = true;
    }
    if (exchange.streaming) {
      if (!emit_stream(exchange)) return;
    } else {
      const size_t bytes = exchange.response.body_bytes();
      write_head(exchange, bytes);
      if (!exchange.head_request) {
        for (BodyPart& part : exchange.response.body) {
          if (bytes <= kGatherBytes) {
            out_.text() += part.bytes();
          } else {
            out_.append(std::move(part));
          }
        }
      }
    }
    if (!exchange.keep_alive) close_when_flushed_ = true;
    pop_exchange();
  }
}

void Http1Connection::write_head(Exchange& exchange, size_t body_bytes) {
  const Response& response = exchange.response;
  std::string& out = out_.text();
  out += "HTTP/1.1 ";
  append_number(out, static_cast<size_t>(std::clamp(response.status, 100, 999)));
  out += ' ';
  out += reason_of(response.status);
  out += "\r\n";
  out += loop_.date_line();
  for (const auto& [name, value] : response.headers) {
    if (is_framing_header(name) || !is_header_safe(name) || !is_header_safe(value)) continue;
    out += name;
    out += ": ";
    out += value;
    out += "\r\n";
  }
  if (exchange.streaming) {
    if (exchange.http10)
      exchange.keep_alive = false;  // no chunks there: the end of the connection ends the body
    if (!exchange.http10) out += "Transfer-Encoding: chunked\r\n";
  } else if (response.status != 204 && response.status != 304) {
    out += "Content-Length: ";
    append_number(out, body_bytes);
    out += "\r\n";
  }
  if (!exchange.keep_alive) {
    out += "Connection: close\r\n";
  } else if (exchange.http10) {
    out += "Connection: keep-alive\r\n";
  }
  out += "\r\n";
  exchange.head_written = true;
}

// True when the stream has ended and all of it is in the output.
bool Http1Connection::emit_stream(Exchange& exchange) {
  const auto emit = [&](std::string_view bytes) {
    if (bytes.empty() || exchange.head_request) return;
    std::string& out = out_.text();
    if (!exchange.http10) {
      append_number(out, bytes.size(), 16);
      out += "\r\n";
    }
    out += bytes;
    if (!exchange.http10) out += "\r\n";
  };
  if (!exchange.head_written) {
    write_head(exchange, 0);
    for (const BodyPart& part : exchange.response.body) emit(part.bytes());
  }
  if (out_.bytes() > kStreamWindow) return false;  // a slow reader: keep the rest where its size is visible
  emit(exchange.pieces);
  exchange.backlog_bytes.fetch_sub(exchange.pieces.size(), std::memory_order_relaxed);
  exchange.pieces.clear();
  exchange.pieces_lease.resize(0);
  if (exchange.aborted) {
    exchange.keep_alive = false;  // without the last chunk: the client knows that something is missing
    return true;
  }
  if (!exchange.finished) return false;
  if (!exchange.http10 && !exchange.head_request) out_.text() += "0\r\n\r\n";
  return true;
}

void Http1Connection::pop_exchange() {
  Exchange* done = first_;
  first_ = done->next;
  if (first_ == nullptr) last_ = nullptr;
  --in_flight_;
  hold(*done, 0);
  done->connection = nullptr;
  done->release();
  request_finished_ = true;
}

// One read, into the body itself when its length is known. False when there is nothing to read now.
bool Http1Connection::read_some() {
  size_t missing = 0;
  char* body = in_.empty() && accepts_requests() ? parser_.body_tail(missing) : nullptr;
  if (body == nullptr) missing = 0;
  // What follows a body goes behind it in the same call: no second one is needed to see that there is none.
  in_.reserve(in_.size() + kReadBytes);
  const std::span<char> rest(in_.data() + in_.size(), in_.capacity() - in_.size());
  const size_t room = missing + (socket_.is_tls() && missing > 0 ? 0 : rest.size());
  const ssize_t got = missing > 0 ? socket_.read(std::span<char>(body, missing), rest)
                                  : socket_.read(rest.data(), rest.size());
  if (got == Socket::kBroken) {
    close();
    return false;
  }
  if (got == Socket::kEof) {
    on_eof();
    return false;
  }
  if (got == Socket::kAgain) {
    readable_ = false;
    return false;
  }
  const auto bytes = static_cast<size_t>(got);
  // A short read has emptied the socket; if the peer hung up meanwhile, its end is still to be read.
  if (bytes < room && !hung_up_ && !socket_.is_tls()) readable_ = false;
  if (missing > 0) parser_.body_filled(std::min(bytes, missing));
  if (bytes > missing) in_.set_size(in_.size() + bytes - missing);
  return true;
}

// The client has left (or will at least send no more): requests being worked on are told, answers are still
// tried.
void Http1Connection::on_eof() {
  if (eof_) return;
  eof_ = true;
  readable_ = false;
  tell_gone();
}

void Http1Connection::tell_gone() {
  for (Exchange* e = first_; e != nullptr; e = e->next) {
    if (!e->gone.load() && (!e->ready || e->streaming)) {
      loop_.shared().counts.gone.fetch_add(1, std::memory_order_relaxed);
      e->mark_gone();
    }
  }
}

void Http1Connection::flush() {
  if (closed_ || !writable_ || out_.empty()) return;
  const size_t before = out_.bytes();
  const Output::Flush result = out_.flush(socket_);
  if (result == Output::Flush::broken) {
    close();
    return;
  }
  if (result == Output::Flush::blocked) writable_ = false;
  written_bytes_ += before - out_.bytes();
  out_.empty() ? reading_.rest()
               : reading_.look(reading_pace(loop_.shared().options), loop_.now_ns(), written_bytes_);
}

// Writes what there is and decides whether the connection ends here.
void Http1Connection::finish_turn() {
  flush();
  // Text that waits for a slow reader counts; without room for it the reader goes. Tensors count by
  // themselves.
  if (!closed_ && !out_lease_.try_resize(out_.empty() ? 0 : static_cast<int64_t>(out_.text_bytes()))) close();
  if (closed_) return;
  if (out_.empty()) {
    if (first_ != nullptr && first_->streaming && !first_->pieces.empty()) loop_.revisit(*this);
    const bool last_answer_left = close_when_flushed_ && first_ == nullptr;
    if (last_answer_left && !lingering_) {
      if (eof_ || (!input_suspect_ && in_.empty())) {
        close();
        return;
      }
      socket_.shutdown_write();
      lingering_ = true;
      loop_.revisit(*this);
    }
    if (eof_ && first_ == nullptr) {
      close();
      return;
    }
  }
  const Phase now = phase();
  // Woken for each piece of a large body, a server spends more on waking than on reading it.
  const size_t missing = now == Phase::body ? parser_.body_missing() : 0;
  if (missing > kSmallRestBytes) loop_.takes_bulk();
  socket_.wake_at(missing > kSmallRestBytes ? std::min(missing, kWakeBytes) : 1);
  if (now != last_phase_ || request_finished_) phase_began_ns_ = loop_.now_ns();
  last_phase_ = now;
  request_finished_ = false;
}

// Closing with unread input resets the connection and may destroy the answer on its way: read until the peer
// ends.
void Http1Connection::discard_input() {
  in_.clear();
  in_.reserve(kReadBytes);
  for (int reads = 0; readable_ && reads < kReadsPerTurn; ++reads) {
    const ssize_t got = socket_.read(in_.data(), in_.capacity());
    if (got == Socket::kAgain) {
      readable_ = false;
      return;
    }
    if (got > 0) lingered_bytes_ += static_cast<size_t>(got);
    if (got <= 0 || lingered_bytes_ > kLingerBytes) {
      close();
      return;
    }
  }
  if (readable_) loop_.revisit(*this);
}

Http1Connection::Phase Http1Connection::phase() const {
  if (lingering_) return Phase::linger;
  if (parser_.state() == RequestParser::State::body) return Phase::body;
  return in_.empty() ? Phase::idle : Phase::head;
}

int64_t Http1Connection::deadline_ns() const {
  const ServerOptions& options = loop_.shared().options;
  constexpr int64_t kNever = Pace::kNever;
  if (!out_.empty() && !writable_) {
    // While memory is tight, who does not read goes first; at all times a pace is asked for, as of senders.
    return reading_.due_ns(base::process_memory().is_tight() ? to_ns(options.tight_timeout) : kNever);
  }
  if (last_phase_ == Phase::linger) return phase_began_ns_ + kLingerNs;
  if (first_ != nullptr) return kNever;  // the handler's time is the handler's business
  switch (last_phase_) {
    case Phase::head: return phase_began_ns_ + to_ns(options.header_timeout);
    case Phase::body: {
      const double earned_s =
          static_cast<double>(parser_.body_received()) / static_cast<double>(options.min_body_rate);
      return phase_began_ns_ + to_ns(options.body_timeout) + static_cast<int64_t>(earned_s * 1e9);
    }
    default: break;
  }
  const int64_t idle = phase_began_ns_ + to_ns(options.idle_timeout);
  if (!loop_.draining()) return idle;
  return std::min(idle, std::max(loop_.drain_began_ns(), phase_began_ns_) + to_ns(options.drain_grace));
}

void Http1Connection::check_deadline() {
  if (closed_ || loop_.now_ns() < deadline_ns()) return;
  if (last_phase_ == Phase::body && !readable_) {
    // Bytes too few to wake for may wait in the socket: they count for the client's pace.
    readable_ = true;
    advance();
    if (closed_ || loop_.now_ns() < deadline_ns()) return;
  }
  const bool mid_request =
      first_ == nullptr && out_.empty() && (last_phase_ == Phase::head || last_phase_ == Phase::body);
  if (!loop_.draining() || last_phase_ != Phase::idle) {
    loop_.shared().counts.timeouts.fetch_add(1, std::memory_order_relaxed);
  }
  if (!mid_request || no_more_requests_) {
    close();
    return;
  }
  answer_malformed(408, "request did not arrive in time");
  advance();
}

void Http1Connection::close() {
  if (closed_) return;
  on_eof();
  closed_ = true;
  while (first_ != nullptr) pop_exchange();
  loop_.retire(*this);
}

}  // namespace trireme::http
