// The answer side of one request: move-only sinks that any thread may use, once, after the handler returned.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <utility>

#include "serve/http_message.h"

namespace trireme::serve {

struct HttpExchange;

/// Counted reference to an exchange; internal to the sinks below.
class HttpExchangeRef {
 public:
  HttpExchangeRef() = default;
  explicit HttpExchangeRef(HttpExchange* exchange) : exchange_(exchange) {}  // adopts one count
  HttpExchangeRef(HttpExchangeRef&& other) noexcept : exchange_(std::exchange(other.exchange_, nullptr)) {}
  HttpExchangeRef& operator=(HttpExchangeRef&& other) noexcept;
  ~HttpExchangeRef();

  HttpExchange* get() const { return exchange_; }
  HttpExchange* release() { return std::exchange(exchange_, nullptr); }

 private:
  HttpExchange* exchange_ = nullptr;
};

/// Writer of a response whose body arrives in pieces (chunked; server-sent events). Calls from one thread at
/// a time. Dropped without finish(), it closes the connection so that the client sees a truncated body.
class HttpStream {
 public:
  HttpStream() = default;
  HttpStream(HttpStream&&) noexcept = default;
  HttpStream& operator=(HttpStream&& other) noexcept;
  ~HttpStream();

  /// Sends one piece at once; empty pieces are ignored. Returns false when the client has gone (the piece is
  /// dropped).
  bool write(std::string bytes);
  /// Ends the body. The stream is empty afterwards.
  void finish();

  /// Bytes handed to write() that the socket has not taken yet: a slow reader's backlog.
  size_t backlog_bytes() const;
  bool client_gone() const;

 private:
  friend class HttpReply;
  explicit HttpStream(HttpExchangeRef exchange) : exchange_(std::move(exchange)) {}
  void abort();
  HttpExchangeRef exchange_;
};

/// The sink of one request. Exactly one of send() and stream() is called, from any thread; dropped unused,
/// the client gets a 500.
class HttpReply {
 public:
  HttpReply() = default;
  explicit HttpReply(HttpExchangeRef exchange) : exchange_(std::move(exchange)) {}
  HttpReply(HttpReply&&) noexcept = default;
  HttpReply& operator=(HttpReply&& other) noexcept;
  ~HttpReply();

  /// Sends the whole response. Compression, if the client asked for it, is paid by the calling thread.
  void send(HttpResponse response);
  /// Sends the head and returns the writer of the body; response.body is the first piece.
  HttpStream stream(HttpResponse response);

  /// True once the client has closed its side: work for it can stop. Cheap; any thread.
  bool client_gone() const;
  /// Calls `notify` once when the client leaves (on a server thread, so it must be short), or at once if it
  /// has left. At most one callback per request; it may still be running while send() is called.
  void on_client_gone(std::function<void()> notify);

  explicit operator bool() const { return exchange_.get() != nullptr; }

 private:
  HttpExchangeRef exchange_;
};

}  // namespace trireme::serve
