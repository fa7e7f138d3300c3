// HTTP/2 on one socket: each read goes to the bytes' final place; also writes, deadlines, drain.
#include "http/http2/http2_connection.h"

#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <utility>

#include "http/pace.h"

namespace trireme::http {
namespace {

constexpr size_t kReadBytes = size_t{16} << 10;
constexpr size_t kOutputWindow = size_t{1} << 20;  // with more unsent bytes, streams wait
constexpr size_t kSmallRestBytes = size_t{64} << 10;
constexpr size_t kWakeBytes = size_t{1} << 20;
constexpr size_t kViews = 132;  // for one read: bodies and headers of 64 frames
constexpr int64_t kLingerNs = 2'000'000'000;
constexpr int64_t kAnnouncedNs =
    100'000'000;                   // what a client sends before it learns of the end arrives within this
constexpr int kReadsPerTurn = 32;  // then other connections get their turn

}  // namespace

Http2Connection::Http2Connection(Loop& loop, Descriptor fd, const Http2Service& service)
    : loop_(loop),
      service_(service),
      socket_(std::move(fd), loop.shared().tls.get()),
      is_local_(socket_.is_local()),
      session_(std::make_unique<Http2Session>(service.limits, static_cast<Http2Owner&>(*this))),
      opened_ns_(loop.now_ns()),
      used_ns_(loop.now_ns()) {}

Http2Connection::~Http2Connection() { close(); }

void Http2Connection::close() {
  if (closed()) return;
  advancing_ = true;  // output of streams is ignored from now on
  session_.reset();
  loop_.retire(*this);
}

std::shared_ptr<Http2Stream> Http2Connection::open_stream() {
  used_ns_ = loop_.now_ns();
  return service_.open(loop_, *session_, is_local_);
}

void Http2Connection::on_output() {
  if (!advancing_) loop_.revisit(*this);
}

void Http2Connection::on_events(uint32_t events) {
  if (closed()) return;
  if ((events & (EPOLLERR | EPOLLHUP)) != 0) return close();
  const bool any = socket_.is_tls();  // a TLS read may have to wait for a write, and vice versa
  if (any || (events & (EPOLLIN | EPOLLRDHUP)) != 0) readable_ = true;
  if (any || (events & EPOLLOUT) != 0) out_.open();
  if ((events & EPOLLRDHUP) != 0) hung_up_ = true;
  advance();
}

void Http2Connection::advance() {
  if (closed() || advancing_) return;
  advancing_ = true;
  for (int reads = 0; !closed() && !lingering_ && readable_; ++reads) {
    // While a client does not read its answers, nothing more is read from it.
    if (out_.bytes() > kOutputWindow) flush();
    if (closed() || out_.bytes() > kOutputWindow) break;
    if (reads == kReadsPerTurn) {
      loop_.revisit(*this);
      break;
    }
    const bool goes_on = read_some();
    if (!goes_on && !notice_small_rest()) break;
  }
  if (closed()) return;
  if (lingering_) {
    discard_input();
  } else {
    finish_turn();
  }
  advancing_ = false;
}

// Reads once, directly into the message if its place is known. False if there is nothing to read now.
bool Http2Connection::read_some() {
  std::array<char, kReadBytes> buffer;
  std::array<iovec, kViews> views;
  const size_t count = socket_.is_tls() ? 0 : session_->scatter(views, buffer);
  size_t room = buffer.size();
  for (size_t i = 0; i + 1 < count; ++i) room += views[i].iov_len;
  const ssize_t got = count > 0 ? socket_.read(std::span<const iovec>(views.data(), count))
                                : socket_.read(buffer.data(), buffer.size());
  if (got == Socket::kAgain) {
    readable_ = false;
    return false;
  }
  if (got <= 0) {
    close();
    return false;
  }
  const auto bytes = static_cast<size_t>(got);
  if (bytes > kSmallRestBytes) loop_.takes_bulk();
  // A short read has emptied the socket. But if the peer hung up, the end of the stream is still to be read.
  if (bytes < room && !hung_up_ && !socket_.is_tls()) readable_ = false;
  return count > 0 ? session_->receive_scattered(bytes, loop_.now_ns())
                   : session_->receive({buffer.data(), bytes}, loop_.now_ns());
}

// Near the end of a large message, makes the socket report every byte again. Bytes that came before were not
// reported: returns true if they must be read now.
bool Http2Connection::notice_small_rest() {
  if (closed() || !wakes_late_ || session_->is_over() || session_->awaited_bytes() > kSmallRestBytes)
    return false;
  socket_.wake_at(1);
  wakes_late_ = false;
  readable_ = true;
  return true;
}

void Http2Connection::flush() {
  for (;;) {
    session_->send(out_.queue(), kOutputWindow, socket_.is_tls());
    if (out_.empty() || out_.is_stuck()) return;
    if (!out_.flush(socket_, service_.limits.reading, loop_.now_ns())) return close();
    if (out_.is_stuck()) return;
  }
}

void Http2Connection::finish_turn() {
  flush();
  if (closed()) return;
  // As in HTTP/1.1: without memory for the text that waits for a slow reader, the connection is closed.
  if (!out_.account()) return close();
  if (session_->is_over() && out_.empty()) {
    // Closing with unread input resets the connection, which may destroy the last frames in transit.
    lingering_ = true;
    linger_began_ns_ = loop_.now_ns();
    session_->streams().cut();
    socket_.shutdown_write();
    return discard_input();
  }
  // If each piece of a large message woke the server, waking would cost more than reading.
  const size_t awaited = session_->awaited_bytes();
  wakes_late_ = awaited > kSmallRestBytes;
  if (wakes_late_) loop_.takes_bulk();
  socket_.wake_at(wakes_late_ ? std::min(awaited, kWakeBytes) : 1);
}

void Http2Connection::discard_input() {
  std::array<char, kReadBytes> buffer;
  for (int reads = 0; readable_; ++reads) {
    if (reads == kReadsPerTurn) return loop_.revisit(*this);
    const ssize_t got = socket_.read(buffer.data(), buffer.size());
    if (got == Socket::kAgain) {
      readable_ = false;
    } else if (got <= 0) {
      return close();
    }
  }
}

void Http2Connection::check_deadline() {
  if (closed()) return;
  const int64_t now_ns = loop_.now_ns();
  const ServerOptions& options = loop_.shared().options;
  const bool is_silent = !session_->has_preface() && now_ns > opened_ns_ + to_ns(options.header_timeout);
  // While memory is tight, or this connection holds much of it, a client that reads nothing is dropped first.
  const int64_t quiet_ns = base::process_memory().is_tight() || session_->streams().is_full()
                               ? to_ns(options.tight_timeout)
                               : Pace::kNever;
  const bool is_stuck = out_.is_stuck() && now_ns >= out_.due_ns(quiet_ns);
  if (is_silent || is_stuck || (lingering_ && now_ns > linger_began_ns_ + kLingerNs)) {
    if (!lingering_) loop_.shared().counts.timeouts.fetch_add(1, std::memory_order_relaxed);
    return close();
  }
  if (lingering_) return;
  const auto& streams = session_->streams().open();
  for (size_t i = 0; i < streams.size(); ++i) streams[i]->on_tick(now_ns);
  session_->drop_slow(now_ns, quiet_ns);
  check_silence();
  check_end();
  if (!wakes_late_) return;
  // Bytes too few to raise an event may wait in the socket.
  readable_ = true;
  advance();
}

void Http2Connection::check_silence() {
  const int64_t last_ns = std::max(session_->last_receive_ns(), opened_ns_);
  if (pinged_ns_ > last_ns) {
    if (loop_.now_ns() > pinged_ns_ + service_.keepalive_answer_ns) close();
  } else if (loop_.now_ns() > last_ns + service_.keepalive_ns) {
    pinged_ns_ = loop_.now_ns();
    session_->ping();
  }
}

// Ends the connection when the server drains, or when it had no stream for HTTP/1.1's idle timeout. The end
// is announced to the client before new streams are refused, so that no request is lost.
void Http2Connection::check_end() {
  if (closed()) return;
  const int64_t now_ns = loop_.now_ns();
  const auto& streams = session_->streams().open();
  if (!streams.empty()) used_ns_ = now_ns;
  const bool is_unused = now_ns > used_ns_ + to_ns(loop_.shared().options.idle_timeout);
  if (ending_ == Ending::no && (loop_.draining() || is_unused)) {
    ending_ = Ending::announced;
    announced_ns_ = now_ns;
    session_->announce_end();
  } else if (ending_ == Ending::announced && now_ns > announced_ns_ + kAnnouncedNs) {
    ending_ = Ending::refusing;
    session_->refuse_streams();
  }
  if (!loop_.draining() || std::exchange(has_told_streams_, true)) return;
  for (size_t i = 0; i < streams.size(); ++i) streams[i]->on_drain();
}

}  // namespace trireme::http
