// Internal to the HTTP server: one accepted socket, plain or TLS, and the queue of bytes that wait to leave
// through it.
#pragma once

#include <sys/types.h>
#include <sys/uio.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "serve/http_message.h"

namespace trireme::serve {

/// PEM files of a TLS listener. With a client CA, whoever connects must show a certificate that it signed.
struct HttpTlsFiles {
  std::string certificate, key, client_ca;
  std::string protocol = {};  // ALPN: what clients must offer; empty: none is asked for
};

/// Certificate and key that connections of one server share.
class HttpTlsContext {
 public:
  /// Throws invalid_argument if the files cannot be used.
  explicit HttpTlsContext(const HttpTlsFiles& files);
  ~HttpTlsContext();

 private:
  friend class HttpSocket;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// A non-blocking stream socket. Results: bytes moved, or one of the three marks.
class HttpSocket {
 public:
  static constexpr ssize_t kEof = 0;
  static constexpr ssize_t kAgain = -1;
  static constexpr ssize_t kBroken = -2;

  HttpSocket(int fd, const HttpTlsContext* tls);
  ~HttpSocket();
  HttpSocket(const HttpSocket&) = delete;
  HttpSocket& operator=(const HttpSocket&) = delete;

  int fd() const { return fd_; }
  bool is_tls() const { return tls_ != nullptr; }
  ssize_t read(char* to, size_t bytes);
  /// Fills `to`, then `spill`; secured sockets use `to` only. What comes back short has emptied the socket.
  ssize_t read(std::span<char> to, std::span<char> spill);
  /// Fills the views one after another. Plain sockets only.
  ssize_t read(std::span<const iovec> views);
  /// Readiness is told from so many waiting bytes on; 1 is the usual. Errors and the peer's end always are.
  void wake_at(size_t bytes);
  /// Writes views in order, as many as one call takes.
  ssize_t write(const std::string_view* views, size_t count);
  void shutdown_write();

 private:
  struct Tls;
  ssize_t tls_result(int rc) const;
  int fd_;
  size_t wake_bytes_ = 1;
  std::unique_ptr<Tls> tls_;
};

/// Bytes on their way out. Small ones are gathered in one run, so that many pipelined answers leave in one
/// call; large body parts are queued as they are and never copied.
class HttpOutput {
 public:
  /// The run to append text to.
  std::string& text();
  void append(HttpBodyPart part);
  size_t bytes() const;
  bool empty() const { return bytes() == 0; }

  enum class Flush { done, blocked, broken };
  Flush flush(HttpSocket& socket);

 private:
  struct Segment {
    std::string text;
    std::optional<HttpBodyPart> part;
    std::string_view view() const { return part ? part->bytes() : std::string_view(text); }
  };
  void consumed(size_t bytes);

  std::vector<Segment> segments_;
  size_t first_ = 0;   // segments before it have left
  size_t offset_ = 0;  // bytes of segment first_ that have left
};

}  // namespace trireme::serve
