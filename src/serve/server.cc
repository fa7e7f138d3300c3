// The server: from start to drain.
#include "serve/server.h"

#include "base/memory.h"

namespace trireme::serve {
namespace {

HttpServerOptions http_options(const ServeOptions& options) {
  HttpServerOptions http;
  http.host = options.host;
  http.port = static_cast<uint16_t>(options.http_port);
  http.threads = options.http_threads;
  http.limits.max_body_bytes = static_cast<size_t>(options.max_request_bytes.bytes);
  http.tls_certificate_file = options.tls_certificate;
  http.tls_key_file = options.tls_key;
  return http;
}

}  // namespace

Server::Server(const ServeOptions& options, const base::Env& env)
    : options_(options),
      env_(env),
      repository_(options, env, metrics_),
      kserve_(repository_, env, [this] { return is_ready(); }) {
  register_process_metrics(env_.clock.now_ns());
  http_ = std::make_unique<HttpServer>(http_options(options), [this](HttpRequest&& request, HttpReply reply) {
    handle(std::move(request), std::move(reply));
  });
}

Server::~Server() { http_->stop(); }

bool Server::is_ready() const {
  return state_.load() == State::serving && !(options_.strict_readiness && repository_.has_failures());
}

void Server::load() {
  repository_.load();
  state_ = State::serving;
}

bool Server::drain() {
  state_ = State::draining;
  const bool all = http_->drain(std::chrono::milliseconds(options_.exit_timeout.ns / base::kNsPerMs));
  // Answers that came too late go nowhere; the schedulers still end in order.
  http_->stop();
  if (all) repository_.drain();
  return all;
}

void Server::handle(HttpRequest&& request, HttpReply reply) const {
  const bool is_get = request.method == "GET" || request.method == "HEAD";
  if (request.path.substr(0, 3) == "/v2") {
    // The repository is written by load() alone; until it has ended only health can be asked.
    const bool is_health = request.path.substr(0, 11) == "/v2/health/" || request.path == "/v2";
    if (state_.load() == State::loading && !is_health) {
      return reply.send(
          http_error(base::Error(base::ErrorCode::unavailable, "the server is loading its models")));
    }
    return kserve_.handle(std::move(request), std::move(reply));
  }
  if (request.path == "/metrics" && is_get)
    return reply.send(http_text(200, metrics_.expose(), metrics_.kContentType));
  if (request.path == "/" && is_get) {
    return reply.send(http_text(200, std::string(live_page()), "text/html; charset=utf-8"));
  }
  reply.send(http_error(404, "Not Found"));
}

void Server::register_process_metrics(int64_t started_ns) {
  metrics_.gauge_from("process_resident_memory_bytes", "Resident memory of this process", {},
                      [] { return static_cast<double>(base::resident_bytes()); });
  metrics_.gauge_from("trireme_uptime_seconds", "Time since the start", {}, [this, started_ns] {
    return static_cast<double>(env_.clock.now_ns() - started_ns) * 1e-9;
  });
  // The listener is made after this; scrapes come through it, so it is there whenever these are read.
  const auto http = [this](std::string_view name, std::string_view help, uint64_t HttpServerCounts::*member) {
    metrics_.counter_from(name, help, {},
                          [this, member] { return static_cast<double>(http_->counts().*member); });
  };
  http("trireme_http_requests_total", "HTTP requests handed to a route", &HttpServerCounts::requests);
  http("trireme_http_connections_accepted_total", "Connections accepted",
       &HttpServerCounts::connections_accepted);
  http("trireme_http_clients_gone_total", "Clients that left while being answered",
       &HttpServerCounts::clients_gone);
  metrics_.gauge_from("trireme_http_connections_open", "Connections open now", {},
                      [this] { return static_cast<double>(http_->counts().connections_open); });
}

}  // namespace trireme::serve
