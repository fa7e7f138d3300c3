// HTTP server: binds the socket, runs the threads of the event loops, and carries out stop and drain.
#include "http/server.h"

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/threads/this_thread.h"
#include "http/http1/http1_connection.h"
#include "http/loop.h"

namespace trireme::http {
namespace {

constexpr std::string_view kFull =
    "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: 1\r\n"
    "Content-Length: 33\r\nConnection: close\r\n\r\n{\"error\":\"too many connections\"}\n";

struct AddressList {
  addrinfo* first = nullptr;
  ~AddressList() {
    if (first != nullptr) freeaddrinfo(first);
  }
};

int bind_and_listen(const std::string& host, uint16_t port) {
  addrinfo hints{};
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  hints.ai_socktype = SOCK_STREAM;
  AddressList list;
  const int rc =
      getaddrinfo(host.empty() ? nullptr : host.c_str(), std::to_string(port).c_str(), &hints, &list.first);
  base::require(rc == 0, "HTTP address cannot be resolved: ", host, ": ", rc == 0 ? "" : gai_strerror(rc));
  int error = 0;
  for (const addrinfo* a = list.first; a != nullptr; a = a->ai_next) {
    const int fd = socket(a->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    const int on = 1;
    const int off = 0;
    if (fd >= 0) {
      setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
      if (a->ai_family == AF_INET6) setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
      if (bind(fd, a->ai_addr, a->ai_addrlen) == 0 && listen(fd, 4096) == 0) return fd;
    }
    error = errno;
    if (fd >= 0) ::close(fd);
  }
  base::fail(base::ErrorCode::unavailable, "cannot listen on ", host, " port ", port, ": ",
             std::strerror(error));
}

uint16_t bound_port(int fd) {
  sockaddr_storage address{};
  socklen_t bytes = sizeof address;
  getsockname(fd, reinterpret_cast<sockaddr*>(&address), &bytes);
  const auto* v4 = reinterpret_cast<const sockaddr_in*>(&address);
  const auto* v6 = reinterpret_cast<const sockaddr_in6*>(&address);
  return ntohs(address.ss_family == AF_INET6 ? v6->sin6_port : v4->sin_port);
}

}  // namespace

struct Server::Impl {
  Shared shared;
  std::vector<std::thread> threads;
  uint16_t port = 0;

  Loop& acceptor() { return *shared.loops.front(); }
};

Server::Server(const ServerOptions& options, Handler handler)
    : Server(
          options,
          [](Loop& loop, Descriptor fd) { return std::make_unique<Http1Connection>(loop, std::move(fd)); },
          kFull, std::move(handler)) {}

Server::Server(const ServerOptions& options, LoopConnectionMaker open, std::string_view refusal)
    : Server(options, std::move(open), refusal, Handler()) {}

Server::Server(const ServerOptions& options, LoopConnectionMaker open, std::string_view refusal,
               Handler handler)
    : impl_(std::make_unique<Impl>()) {
  base::require(options.threads >= 1 && options.threads <= 256,
                "HTTP server needs 1 to 256 threads: ", options.threads);
  base::require(options.max_connections >= 1,
                "HTTP server needs room for a connection: ", options.max_connections);
  base::require(options.max_pipelined >= 1, "HTTP pipeline depth must be positive: ", options.max_pipelined);
  base::require(options.min_body_rate >= 1, "HTTP body rate must be positive: ", options.min_body_rate);
  base::require(options.tls_certificate_file.empty() == options.tls_key_file.empty(),
                "TLS needs both a certificate file and a key file");
  base::require(options.tls_client_ca_file.empty() || !options.tls_key_file.empty(),
                "a client CA needs a certificate and its key");
  Shared& shared = impl_->shared;
  shared.options = options;
  shared.handler = std::move(handler);
  shared.open = std::move(open);
  shared.refusal = refusal;
  if (!options.tls_certificate_file.empty()) {
    shared.tls = std::make_unique<TlsContext>(TlsFiles{.certificate = options.tls_certificate_file,
                                                       .key = options.tls_key_file,
                                                       .client_ca = options.tls_client_ca_file,
                                                       .protocol = options.tls_protocol});
  }
  for (int i = 0; i < options.threads; ++i) shared.loops.push_back(std::make_unique<Loop>(shared));
  const int fd = bind_and_listen(options.host, options.port);
  impl_->port = bound_port(fd);
  impl_->acceptor().listen_on(Descriptor(fd));
  for (const auto& loop : shared.loops) {
    impl_->threads.emplace_back([&l = *loop] {
      base::name_this_thread("http");
      l.run();
    });
  }
}

Server::~Server() { stop(); }

uint16_t Server::port() const { return impl_->port; }

ServerCounts Server::counts() const {
  const SharedCounts& c = impl_->shared.counts;
  ServerCounts out;
  out.connections_open = static_cast<uint64_t>(c.open.load());
  out.connections_accepted = c.accepted.load();
  out.connections_refused = c.refused.load();
  out.requests = c.requests.load();
  out.requests_malformed = c.malformed.load();
  out.timeouts = c.timeouts.load();
  out.clients_gone = c.gone.load();
  return out;
}

void Server::stop_accepting() {
  if (impl_->threads.empty()) return;
  impl_->acceptor().close_listener_from_anywhere();
  while (impl_->acceptor().listening()) std::this_thread::sleep_for(std::chrono::microseconds(200));
}

bool Server::drain(std::chrono::milliseconds timeout) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  stop_accepting();
  impl_->shared.draining.store(true);
  for (const auto& loop : impl_->shared.loops) loop->mailbox()->wake();
  while (impl_->shared.counts.open.load() > 0) {
    if (std::chrono::steady_clock::now() >= deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

void Server::stop() {
  impl_->shared.stopping.store(true);
  for (const auto& loop : impl_->shared.loops) loop->mailbox()->wake();
  for (std::thread& thread : impl_->threads) thread.join();
  impl_->threads.clear();
}

}  // namespace trireme::http
