// Internal to the HTTP server and the load generator: one socket, plain or TLS, and the queue of bytes that
// wait to leave through it.
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

#include "http/descriptor.h"
#include "http/message.h"

namespace trireme::http {

/// PEM files of a TLS listener. With a client CA, whoever connects must show a certificate that it signed.
struct TlsFiles {
  std::string certificate, key, client_ca;
  std::string protocol = {};  // ALPN: what clients must offer; empty: none is asked for
};

/// What a client asks of servers and shows to them, in PEM files.
struct TlsClientFiles {
  std::string ca = {};                     // who signs for servers; empty: the system's authorities
  std::string certificate = {}, key = {};  // of the client; empty: none
  std::string host = {};                   // the name or address that the server's certificate must be for
  bool checks = true;                      // false: any certificate will do
  std::string protocol = {};               // ALPN: what is offered; empty: nothing
};

/// Certificate and key that connections of one server share, or what those of one client do.
class TlsContext {
 public:
  /// Throws invalid_argument if the files cannot be used.
  explicit TlsContext(const TlsFiles& files);
  explicit TlsContext(const TlsClientFiles& files);
  ~TlsContext();

 private:
  friend class Socket;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// A non-blocking stream socket. Results: bytes moved, or one of the three marks.
class Socket {
 public:
  static constexpr ssize_t kEof = 0;
  static constexpr ssize_t kAgain = -1;
  static constexpr ssize_t kBroken = -2;

  Socket(Descriptor fd, const TlsContext* tls);
  ~Socket();
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;

  int fd() const { return fd_.get(); }
  bool is_tls() const { return tls_ != nullptr; }
  /// The peer has a loopback address.
  bool is_local() const;
  /// After kBroken of a client's first read or write: why the server's certificate was not taken; else empty.
  std::string distrust() const;
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
  Descriptor fd_;
  size_t wake_bytes_ = 1;
  std::unique_ptr<Tls> tls_;
};

/// Bytes on their way out. Small ones are gathered in runs, so that many pipelined answers leave in one call;
/// large body parts are queued as they are and never copied. What has left is forgotten even if the queue is
/// never empty: it takes at most twice the memory of what ever waited at once, and counting bytes takes no
/// pass.
class Output {
 public:
  /// The run to append text to.
  std::string& text();
  void append(BodyPart part);
  size_t bytes() const { return segments_.empty() ? 0 : sealed_bytes_ + last_bytes() - offset_; }
  /// Gathered text that is kept, of a run that is leaving all.
  size_t text_bytes() const {
    return segments_.empty() ? 0 : sealed_text_bytes_ + segments_.back().text.size();
  }
  bool empty() const { return bytes() == 0; }

  enum class Flush { done, blocked, broken };
  Flush flush(Socket& socket);

 private:
  struct Segment {
    std::string text;
    std::optional<BodyPart> part;
    std::string_view view() const { return part ? part->bytes() : std::string_view(text); }
  };
  static constexpr size_t kRunBytes = size_t{64} << 10;

  size_t last_bytes() const { return segments_.back().view().size(); }
  void begin_segment();
  void consumed(size_t bytes);

  std::vector<Segment> segments_;
  size_t first_ = 0;         // segments before it have left
  size_t offset_ = 0;        // bytes of segment first_ that have left
  size_t sealed_bytes_ = 0;  // of the segments from first_ on, the last one aside: it may still grow
  size_t sealed_text_bytes_ = 0;
};

}  // namespace trireme::http
