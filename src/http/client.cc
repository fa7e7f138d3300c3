// Blocking HTTP/1.1 client over one socket with poll-based timeouts.
#include "http/client.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <optional>

#include "base/error.h"

namespace trireme::http {
namespace {

constexpr uint16_t kTlsPort = 443;

}  // namespace

Url Url::parse(std::string_view url, std::span<const std::string_view> schemes) {
  Url out;
  const std::string_view whole = url;
  const size_t scheme = url.find("://");
  out.scheme = schemes.front();
  if (scheme != std::string_view::npos) {
    const auto known = std::find_if(schemes.begin(), schemes.end(), [&](std::string_view name) {
      return iequals(url.substr(0, scheme), name);
    });
    std::string names;
    for (const std::string_view name : schemes) names += (names.empty() ? "" : ", ") + std::string(name);
    base::require(known != schemes.end(), "URL scheme is not ", names, ": ", whole);
    out.scheme = *known;
    url.remove_prefix(scheme + 3);
  }
  if (out.scheme == "https") out.port = kTlsPort;
  const size_t slash = url.find_first_of("/?");
  if (slash != std::string_view::npos) {
    out.target = std::string(url[slash] == '?' ? "/" : "") + std::string(url.substr(slash));
    out.target = out.target.substr(0, out.target.find('#'));
    url = url.substr(0, slash);
  }
  // An IPv6 host is enclosed in brackets and contains colons itself.
  const size_t bracket = url.find(']');
  const size_t colon = url.find(':', bracket == std::string_view::npos ? 0 : bracket);
  if (colon != std::string_view::npos) {
    const std::string_view digits = url.substr(colon + 1);
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), out.port);
    const bool whole_number = error == std::errc() && end == digits.data() + digits.size() && out.port != 0;
    base::require(whole_number, "URL port is not a number from 1 to 65535: ", whole);
    url = url.substr(0, colon);
  }
  if (!url.empty() && url.front() == '[' && url.back() == ']') url = url.substr(1, url.size() - 2);
  base::require(!url.empty(), "URL has no host: ", whole);
  out.host = url;
  return out;
}

std::string Url::authority() const {
  const std::string name = host.find(':') == std::string::npos ? host : "[" + host + "]";
  return port == (scheme == "https" ? kTlsPort : 80) ? name : name + ":" + std::to_string(port);
}

int connect_to(const std::string& host, uint16_t port, bool nonblocking, std::chrono::milliseconds timeout) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* list = nullptr;
  const int rc = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &list);
  if (rc != 0) base::fail(base::ErrorCode::unavailable, "host is unknown: ", host, ": ", gai_strerror(rc));
  int error = 0;
  // A name may resolve to several addresses (both families, several machines): the first that accepts a
  // connection is used.
  for (const addrinfo* a = list; a != nullptr; a = a->ai_next) {
    const int fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | (nonblocking ? SOCK_NONBLOCK : 0), 0);
    if (fd >= 0) {
      const int on = 1;
      setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
      const timeval limit{.tv_sec = timeout.count() / 1000, .tv_usec = timeout.count() % 1000 * 1000};
      setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
      if (connect(fd, a->ai_addr, a->ai_addrlen) == 0 || (nonblocking && errno == EINPROGRESS)) {
        freeaddrinfo(list);
        return fd;
      }
    }
    error = errno == EINPROGRESS ? ETIMEDOUT : errno;
    if (fd >= 0) ::close(fd);
  }
  freeaddrinfo(list);
  base::fail(base::ErrorCode::unavailable, "cannot connect to ", host, " port ", port, ": ",
             std::strerror(error));
}

std::string request_head(std::string_view method, std::string_view target, std::string_view authority,
                         size_t body_bytes, const HeaderList& headers) {
  std::string out;
  out.reserve(256);
  out.append(method)
      .append(" ")
      .append(target)
      .append(" HTTP/1.1\r\nHost: ")
      .append(authority)
      .append("\r\n");
  for (const auto& [name, value] : headers) out.append(name).append(": ").append(value).append("\r\n");
  if (body_bytes > 0 || method == "POST" || method == "PUT") {
    out.append("Content-Length: ").append(std::to_string(body_bytes)).append("\r\n");
  }
  return out.append("\r\n");
}

struct Client::Impl {
  std::string host;
  uint16_t port;
  std::string authority;
  int timeout_ms;
  Bounds bounds = {};
  int fd = -1;
  Bytes in;  // received after the last response
  std::optional<ResponseParser> parser{std::in_place};

  ~Impl() {
    if (fd >= 0) ::close(fd);
  }

  // The timeout counts from the last progress, not from the start of the request.
  void wait_for(short events) {
    using std::chrono::steady_clock;
    const auto silent = steady_clock::now() + std::chrono::milliseconds(timeout_ms);
    const auto end = std::min(silent, bounds.until);
    for (;;) {
      check_wanted();
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - steady_clock::now()).count();
      if (left <= 0)
        base::fail(base::ErrorCode::unavailable, "HTTP server did not answer within ", timeout_ms, " ms");
      constexpr int64_t kLookMs = 20;
      pollfd p{fd, events, 0};
      const int rc = poll(&p, 1, static_cast<int>(bounds.is_wanted ? std::min(left, kLookMs) : left));
      if (rc > 0 || (rc < 0 && errno != EINTR)) return;
    }
  }

  // An answer that comes a byte at a time is bounded, too.
  void check_wanted() const {
    if (std::chrono::steady_clock::now() >= bounds.until)
      base::fail(base::ErrorCode::unavailable, "HTTP server did not answer in time");
    if (bounds.is_wanted && !bounds.is_wanted())
      base::fail(base::ErrorCode::unavailable, "nobody waits for the answer any more");
  }

  void send_all(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent >= 0) {
        bytes.remove_prefix(static_cast<size_t>(sent));
      } else if (errno == EAGAIN) {
        wait_for(POLLOUT);
      } else if (errno != EINTR) {
        base::fail(base::ErrorCode::unavailable, "sending to the HTTP server failed: ", std::strerror(errno));
      }
    }
  }

  // Returns 0 at the end of the connection.
  size_t receive_some() {
    constexpr size_t kReadBytes = size_t{64} << 10;
    in.reserve(in.size() + kReadBytes);
    check_wanted();
    for (;;) {
      const ssize_t got = ::recv(fd, in.data() + in.size(), kReadBytes, MSG_DONTWAIT);
      if (got >= 0) {
        in.set_size(in.size() + static_cast<size_t>(got));
        return static_cast<size_t>(got);
      }
      if (errno == EAGAIN) {
        wait_for(POLLIN);
      } else if (errno != EINTR) {
        base::fail(base::ErrorCode::unavailable,
                   "receiving from the HTTP server failed: ", std::strerror(errno));
      }
    }
  }

  Received receive(bool head_request) {
    parser->reset(head_request);
    for (;;) {
      in.erase_front(parser->feed(in.view()));
      if (parser->done()) return std::move(parser->message());
      if (receive_some() == 0) {
        parser->feed_eof();
        return std::move(parser->message());
      }
    }
  }
};

Client::Client(std::string host, uint16_t port, std::chrono::milliseconds timeout)
    : impl_(std::make_unique<Impl>()) {
  Url url;
  url.host = host;
  url.port = port;
  impl_->authority = url.authority();
  impl_->host = std::move(host);
  impl_->port = port;
  impl_->timeout_ms = static_cast<int>(timeout.count());
}

Client::~Client() = default;
Client::Client(Client&&) noexcept = default;
Client& Client::operator=(Client&&) noexcept = default;

void Client::connect() {
  close();
  const auto timeout = std::min(std::chrono::milliseconds(impl_->timeout_ms), impl_->bounds.connecting);
  impl_->fd = connect_to(impl_->host, impl_->port, false, timeout);
}

void Client::close() {
  if (impl_->fd >= 0) ::close(impl_->fd);
  impl_->fd = -1;
  impl_->in.clear();
}

void Client::set_bounds(Bounds bounds) {
  impl_->parser.emplace(bounds.body_bytes);
  impl_->bounds = std::move(bounds);
}

const Received& Client::unfinished() const { return impl_->parser->message(); }

bool Client::connected() const { return impl_->fd >= 0; }

Received Client::request(std::string_view method, std::string_view target, std::string_view body,
                         const HeaderList& headers) {
  std::string bytes = request_head(method, target, impl_->authority, body.size(), headers);
  bytes.append(body);
  // The server may just have closed a kept-alive connection. In that case no byte of an answer has arrived,
  // and the request is sent once more. On a fresh connection, or after the first bytes of an answer, the
  // error is passed to the caller.
  impl_->parser->reset();
  for (bool fresh = !connected();; fresh = true) {
    if (!connected()) connect();
    try {
      impl_->send_all(bytes);
      Received response = impl_->receive(method == "HEAD");
      if (!response.keep_alive) close();
      return response;
    } catch (const base::Error&) {
      const bool answered = impl_->parser->head_done();
      close();
      if (fresh || answered) throw;
    }
  }
}

void Client::send_raw(std::string_view bytes) {
  if (!connected()) connect();
  impl_->send_all(bytes);
}

Received Client::receive(bool head_request) { return impl_->receive(head_request); }

bool Client::wait_closed() {
  try {
    while (impl_->receive_some() > 0) impl_->in.clear();
    return true;
  } catch (const base::Error& error) {
    // A reset also ends the connection; only a timeout means that it is still open.
    return error.message().find("did not answer") == std::string::npos;
  }
}

void Client::shutdown_send() { ::shutdown(impl_->fd, SHUT_WR); }

}  // namespace trireme::http
