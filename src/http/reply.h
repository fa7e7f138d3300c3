// The answer side of one request: move-only sinks that any thread may use, once, after the handler returned.
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "http/message.h"

namespace trireme::http {

struct Exchange;
class Mailbox;

/// A scope in which one thread answers many requests: the event loops that write the answers are woken once,
/// at its end, instead of after each answer. Nothing that is answered in it leaves earlier than that if its
/// loop sleeps. Scopes may be nested; each belongs to the thread that made it.
class HeldWakes {
 public:
  HeldWakes();
  ~HeldWakes();
  HeldWakes(const HeldWakes&) = delete;
  HeldWakes& operator=(const HeldWakes&) = delete;

  /// Internal: wakes the loop when the calling thread's scope ends. False: there is none, or it is full.
  static bool hold(Mailbox& loop);

 private:
  static constexpr size_t kLoops = 16;
  std::array<std::shared_ptr<Mailbox>, kLoops> loops_;
  size_t count_ = 0;
  HeldWakes* outer_;
};

/// Counted reference to an exchange; internal to the sinks below.
class ExchangeRef {
 public:
  ExchangeRef() = default;
  explicit ExchangeRef(Exchange* exchange) : exchange_(exchange) {}  // adopts one count
  ExchangeRef(ExchangeRef&& other) noexcept : exchange_(std::exchange(other.exchange_, nullptr)) {}
  ExchangeRef& operator=(ExchangeRef&& other) noexcept;
  ~ExchangeRef();

  Exchange* get() const { return exchange_; }
  Exchange* release() { return std::exchange(exchange_, nullptr); }

 private:
  Exchange* exchange_ = nullptr;
};

/// Writer of a response whose body arrives in pieces (chunked; server-sent events). Calls from one thread at
/// a time. Dropped without finish(), it closes the connection so that the client sees a truncated body.
class Stream {
 public:
  Stream() = default;
  Stream(Stream&&) noexcept = default;
  Stream& operator=(Stream&& other) noexcept;
  ~Stream();

  /// Sends one piece at once; empty pieces are ignored. Returns false when the client has gone (the piece is
  /// dropped).
  bool write(std::string bytes);
  /// Ends the body. The stream is empty afterwards.
  void finish();

  /// Bytes handed to write() that the socket has not taken yet: a slow reader's backlog.
  size_t backlog_bytes() const;
  bool client_gone() const;

 private:
  friend class Reply;
  explicit Stream(ExchangeRef exchange) : exchange_(std::move(exchange)) {}
  void abort();
  ExchangeRef exchange_;
};

/// The sink of one request. Exactly one of send() and stream() is called, from any thread; dropped unused,
/// the client gets a 500.
class Reply {
 public:
  Reply() = default;
  explicit Reply(ExchangeRef exchange) : exchange_(std::move(exchange)) {}
  Reply(Reply&&) noexcept = default;
  Reply& operator=(Reply&& other) noexcept;
  ~Reply();

  /// Sends the whole response. Compression, if the client asked for it, is paid by the calling thread.
  void send(Response response);
  /// Sends the head and returns the writer of the body; response.body is the first piece.
  Stream stream(Response response);

  /// True once the client has closed its side: work for it can stop. Cheap; any thread.
  bool client_gone() const;
  /// Calls `notify` once when the client leaves (on a server thread, so it must be short), or at once if it
  /// has left. At most one callback per request; it may still be running while send() is called.
  void on_client_gone(std::function<void()> notify);

  explicit operator bool() const { return exchange_.get() != nullptr; }

 private:
  ExchangeRef exchange_;
};

}  // namespace trireme::http
