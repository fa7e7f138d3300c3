// Targets from URLs and options; single calls with timeouts.
#include "load/requests/target.h"

#include <fcntl.h>
#include <poll.h>

#include <array>
#include <cerrno>

#include "base/clock.h"
#include "base/error.h"
#include "http/socket.h"
#include "load/requests/exchange.h"

namespace trireme::load {
namespace {

constexpr std::array<std::string_view, 4> kSchemes = {"http", "https", "grpc", "grpcs"};
constexpr int64_t kCallNs = 30 * base::kNsPerSecond;

/// Until the socket is ready, or the call has taken too long.
void wait(int fd, short events, int64_t end_ns) {
  const int64_t left_ms = (end_ns - base::SystemClock().now_ns()) / base::kNsPerMs;
  pollfd p{fd, events, 0};
  const int ready = left_ms > 0 ? ::poll(&p, 1, static_cast<int>(left_ms)) : 0;
  if (ready == 0 || (ready < 0 && errno != EINTR))
    base::fail(base::ErrorCode::unavailable, "the server did not answer within ",
               kCallNs / base::kNsPerSecond, " s");
}

[[noreturn]] void fail_closed(const http::Socket& socket, bool is_tls) {
  const std::string distrust = socket.distrust();
  if (!distrust.empty())
    base::fail(base::ErrorCode::unavailable, "the server's certificate is not trusted: ", distrust,
               "; --tls-ca names who signed it, --tls-insecure takes any");
  base::fail(base::ErrorCode::unavailable,
             is_tls ? "the server ended the TLS connection; does it speak TLS here?"
                    : "the server closed the connection");
}

void exchange_all(http::Socket& socket, Exchange& exchange) {
  const int64_t end_ns = base::SystemClock().now_ns() + kCallNs;
  std::array<char, 65536> buffer;
  while (!exchange.is_done()) {
    bool blocked = false;
    for (std::string_view rest = exchange.unsent(); !rest.empty() && !blocked; rest = exchange.unsent()) {
      const ssize_t n = socket.write(&rest, 1);
      if (n == http::Socket::kBroken) fail_closed(socket, socket.is_tls());
      blocked = n == http::Socket::kAgain;
      if (!blocked) exchange.sent(static_cast<size_t>(n));
    }
    const ssize_t n = socket.read(buffer.data(), buffer.size());
    if (n == http::Socket::kBroken) fail_closed(socket, socket.is_tls());
    if (n == http::Socket::kEof) {
      exchange.receive_end();
    } else if (n == http::Socket::kAgain) {
      // Inside a handshake a write waits for bytes to read.
      wait(socket.fd(), static_cast<short>(blocked && !socket.is_tls() ? POLLIN | POLLOUT : POLLIN), end_ns);
    } else {
      exchange.receive({buffer.data(), static_cast<size_t>(n)});
    }
  }
}

}  // namespace

http::Url parse_url(const std::string& url) { return http::Url::parse(url, kSchemes); }

Target target_of(const LoadOptions& o, const http::Url& url) {
  const bool is_tls = url.scheme == "https" || url.scheme == "grpcs";
  Target t{.host = url.host, .port = url.port, .streams = o.stream};
  t.protocol = url.scheme.starts_with("grpc") ? Protocol::grpc : Protocol::http;
  base::require(
      is_tls || (o.tls.ca.empty() && o.tls.certificate.empty() && o.tls.key.empty() && !o.tls.is_insecure),
      "--tls-… options need an https or grpcs URL, not ", o.url);
  base::require(!o.tls.is_insecure || o.tls.ca.empty(), "--tls-insecure and --tls-ca exclude each other");
  base::require(o.tls.certificate.empty() == o.tls.key.empty(),
                "--tls-certificate and --tls-key go together");
  if (is_tls) {
    t.tls = std::make_shared<http::TlsContext>(
        http::TlsClientFiles{.ca = o.tls.ca,
                             .certificate = o.tls.certificate,
                             .key = o.tls.key,
                             .host = url.host,
                             .checks = !o.tls.is_insecure,
                             .protocol = t.protocol == Protocol::grpc ? "h2" : "http/1.1"});
  }
  return t;
}

std::string grpc_request(std::string_view path, const http::HeaderList& headers, std::string_view authority,
                         std::string_view message) {
  std::string out = base::concat(":path: ", path, "\n:authority: ", authority,
                                 "\nte: trailers\ncontent-type: application/grpc\n");
  for (const auto& [name, value] : headers) {
    // Fields of HTTP/2 are lower case.
    for (const char c : name) out += c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    out += ": " + value + "\n";
  }
  out += '\n';
  out += '\0';  // not compressed
  const auto bytes = static_cast<uint32_t>(message.size());
  for (int shift = 24; shift >= 0; shift -= 8) out += static_cast<char>(bytes >> shift & 0xff);
  return out.append(message);
}

std::string call(const Target& target, const std::string& request) {
  const int fd = http::connect_to(target.host, target.port, false);
  ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK);
  http::Socket socket(http::Descriptor(fd), target.tls.get());
  Target single = target;
  single.streams = false;
  const std::unique_ptr<Exchange> exchange = make_exchange(single, true);
  exchange->open();
  exchange->begin(request);
  exchange_all(socket, *exchange);
  const Answer answer = exchange->answer();
  if (answer.error.empty()) return exchange->body();
  const bool is_absent = answer.error == "status 404" || answer.error == "grpc NOT_FOUND";
  base::fail(is_absent ? base::ErrorCode::not_found : base::ErrorCode::unavailable, answer.error, ": ",
             exchange->body());
}

}  // namespace trireme::load
