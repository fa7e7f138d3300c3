// The server, from start to drain.
#include "serve/server.h"

#include <sys/resource.h>

#include <algorithm>
#include <optional>
#include <thread>

#include "base/machine/memory.h"
#include "base/memory/memory_budget.h"
#include "base/files/scratch.h"
#include "serve/openai/openai_error.h"
#include "serve/repository/repository_files.h"
#include "serve/seeing/live_page.h"
#include "serve/seeing/price.h"
#include "serve/seeing/process_metrics.h"

namespace trireme::serve {
namespace {

http::ServerOptions http_options(const ServeOptions& options) {
  http::ServerOptions http;
  http.host = options.access.host;
  http.port = static_cast<uint16_t>(options.http_port);
  http.threads = options.http_threads;
  http.spin = std::chrono::microseconds(options.http_spin.ns / base::kNsPerUs);
  http.max_connections = options.max_connections;
  http.limits.max_body_bytes = static_cast<size_t>(options.max_request_bytes.bytes);
  http.tls_certificate_file = options.access.tls_certificate;
  http.tls_key_file = options.access.tls_key;
  http.tls_client_ca_file = options.access.tls_client_ca;
  return http;
}

GrpcServerOptions grpc_options(const ServeOptions& options) {
  GrpcServerOptions grpc;
  grpc.host = options.access.grpc_host.empty() ? options.access.host : options.access.grpc_host;
  grpc.port = static_cast<uint16_t>(std::max(0, options.grpc_port));
  grpc.threads = options.http_threads;
  grpc.spin = std::chrono::microseconds(options.http_spin.ns / base::kNsPerUs);
  grpc.max_connections = options.max_connections;
  grpc.max_message_bytes = static_cast<size_t>(options.max_request_bytes.bytes);
  grpc.tls_certificate_file = options.access.tls_certificate;
  grpc.tls_key_file = options.access.tls_key;
  grpc.tls_client_ca_file = options.access.tls_client_ca;
  return grpc;
}

/// The memory that the server may use. The rest of the control group's limit is for memory that is not
/// counted: code, stacks, memory kept by the allocator, small objects.
int64_t memory_limit(const ServeOptions& options) {
  if (options.memory_limit.bytes > 0) return options.memory_limit.bytes;
  return base::memory_limit_bytes() / 5 * 4;
}

/// The names by which clients may address the server: those given, and those on which it listens.
std::vector<std::string> names_of(const AccessOptions& access) {
  std::vector<std::string> names = access.host_name;
  const auto is_name = [](const std::string& host) {
    return host.find_first_of(":*") == std::string::npos && host.find('.') != std::string::npos;
  };
  for (const std::string* host : {&access.host, &access.metrics_host}) {
    if (is_name(*host)) names.push_back(*host);
  }
  return names;
}

/// Each connection is an open file: raises their limit to the system's, and warns if that is too little.
void allow_open_files(int connections, base::Log& log) {
  constexpr rlim_t kOthers = 256;  // for models, gRPC, logs
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
  if (limit.rlim_cur >= static_cast<rlim_t>(connections) + kOthers) return;
  log.warning("serve", "few_files_allowed",
              {{"max_connections", connections}, {"open_files", limit.rlim_cur}, {"see", "ulimit -Hn"}});
}

}  // namespace

Server::Server(const ServeOptions& options, const base::Env& env)
    : options_(options),
      env_(env),
      repository_(options, env, metrics_),
      core_(repository_, options, env),
      guard_(names_of(options.access)),
      kserve_(core_),
      openai_(core_, options.keep_alive.ns,
              {.responses = options.texts.answers.responses_kept,
               .bytes = options.texts.answers.responses_bytes.bytes,
               .ns = options.texts.answers.responses_time.ns}),
      adapters_(core_),
      pages_(core_) {
  base::process_memory().set_limit(memory_limit(options));
  options.texts.prefill.check(options.cache.share_prefixes, !options.access.tls_certificate.empty());
  Prices::read(options.price_per_hour, options.prices, 1);  // reports errors in them now
  register_process_metrics(metrics_, env_.clock);
  allow_open_files(options.max_connections, env_.log);
  register_http_metrics();
  if (!options.kept.files.empty()) jobs_ = std::make_unique<JobsApi>(options.kept, core_, openai_, env_);
  if (options.grpc_port >= 0) grpc_ = std::make_unique<GrpcServer>(grpc_options(options), core_);
  http_ = std::make_unique<http::Server>(
      http_options(options),
      [this](http::Request&& request, http::Reply reply) { handle(std::move(request), std::move(reply)); });
  if (options.metrics_port >= 0) {
    http::ServerOptions http = http_options(options);
    http.port = static_cast<uint16_t>(options.metrics_port);
    if (!options.access.metrics_host.empty()) http.host = options.access.metrics_host;
    http.threads = 1;
    metrics_http_ = std::make_unique<http::Server>(http, [this](http::Request&& request, http::Reply reply) {
      if (request.path != "/metrics") return reply.send(http::error_response(404, "Not Found"));
      handle(std::move(request), std::move(reply));
    });
  }
  if (options.texts.prefill.pages_port >= 0) open_pages_port();
  has_listeners_ = true;
}

/// The port for other servers is in the clear, on an address of its own if so told.
void Server::open_pages_port() {
  const PrefillOptions& prefill = options_.texts.prefill;
  http::ServerOptions http = http_options(options_);
  http.port = static_cast<uint16_t>(prefill.pages_port);
  if (!prefill.pages_host.empty()) http.host = prefill.pages_host;
  http.threads = 1;
  http.tls_certificate_file = http.tls_key_file = http.tls_client_ca_file = "";
  pages_http_ = std::make_unique<http::Server>(http, [this](http::Request&& request, http::Reply reply) {
    if (std::optional<http::Response> refusal = guard_.refusal(request, Category::inference))
      return reply.send(std::move(*refusal));
    pages_.handle(std::move(request), std::move(reply));
  });
}

Server::~Server() {
  if (grpc_) grpc_->stop();
  if (metrics_http_) metrics_http_->stop();
  if (pages_http_) pages_http_->stop();
  http_->stop();
  if (jobs_) jobs_->stop();
  repository_.close();  // runs still use the core's tracer and regions
}

void Server::load() {
  if (const int removed = base::remove_stale_scratch(kOverridePrefix); removed > 0)
    env_.log.info("serve", "stale_files_removed", {{"directories", removed}});
  repository_.load();
  core_.set_state(ServerState::serving);
  if (jobs_) jobs_->start();
}

bool Server::drain() {
  core_.set_state(ServerState::draining);
  std::thread jobs([&] {
    if (jobs_) jobs_->stop();  // batches continue at the next start
  });
  const auto limit = std::chrono::milliseconds(options_.exit_timeout.ns / base::kNsPerMs);
  // Both drain at once: clients of one learn of the end whatever clients of the other still wait for.
  bool all_grpc = true;
  std::thread grpc([&] {
    if (grpc_) all_grpc = grpc_->drain(limit);
  });
  std::thread pages([&] {
    if (pages_http_) pages_http_->drain(limit);  // what is cut off, its asker computes
  });
  const bool all_http = http_->drain(limit);
  pages.join();
  grpc.join();
  jobs.join();
  const bool all = all_http && all_grpc;
  // Later answers are discarded, but the schedulers still end in order.
  http_->stop();
  if (all) repository_.drain();
  return all;
}

void Server::handle_jobs(http::Request&& request, http::Reply reply) const {
  if (jobs_) return jobs_->handle(std::move(request), std::move(reply));
  reply.send(openai_error(501, "this server keeps no files and batches: start it with --files DIRECTORY"));
}

void Server::handle(http::Request&& request, http::Reply reply) const {
  const bool is_get = request.method == "GET" || request.method == "HEAD";
  const Category category = category_of_path(request.path);
  if (std::optional<http::Response> refusal = guard_.refusal(request, category))
    return reply.send(std::move(*refusal));
  if (JobsApi::takes(request.path)) return handle_jobs(std::move(request), std::move(reply));
  const bool changes_adapters = AdapterApi::takes(request.path);
  if (OpenAiApi::takes(request.path) && !changes_adapters)
    return openai_.handle(std::move(request), std::move(reply));
  Caller caller{.header = [&](const std::string& name) { return request.header(name); }};
  caller.is_local = is_control(category) && request.is_local && !is_forwarded(caller.header);
  const Access access = changes_adapters ? core_.rules().judge_before_reading(category, caller)
                                         : core_.rules().judge(category, model_of_path(request.path), caller);
  if (access != Access::allowed) {
    return reply.send(
        http::error_response(403, base::concat("This API is ", AccessRules::refusal(category, access))));
  }
  if (changes_adapters) return adapters_.handle(request, caller, std::move(reply));
  if (request.path.substr(0, 3) == "/v2") {
    return kserve_.handle(std::move(request), std::move(reply));
  }
  const bool is_page = request.path == "/metrics" || request.path == "/";
  if (is_page && !is_get) {
    http::Response refusal = http::error_response(405, "Method Not Allowed");
    refusal.headers.emplace_back("Allow", "GET");
    return reply.send(std::move(refusal));
  }
  if (request.path == "/metrics")
    return reply.send(http::text_response(200, metrics_.expose(), metrics_.kContentType));
  if (request.path == "/") return reply.send(live_page());
  reply.send(http::error_response(404, "Not Found"));
}

void Server::register_http_metrics() {
  const auto count = [this](uint64_t http::ServerCounts::*member) {
    return [this, member] { return has_listeners_ ? static_cast<double>(http_->counts().*member) : 0.0; };
  };
  const auto http = [&](std::string_view name, std::string_view help, uint64_t http::ServerCounts::*member) {
    metrics_.counter_from(name, help, {}, count(member));
  };
  http("trireme_http_requests_total", "HTTP requests handed to a route", &http::ServerCounts::requests);
  http("trireme_http_connections_accepted_total", "Connections accepted",
       &http::ServerCounts::connections_accepted);
  http("trireme_http_clients_gone_total", "Clients that left while being answered",
       &http::ServerCounts::clients_gone);
  http("trireme_http_connections_refused_total", "Connections beyond --max-connections",
       &http::ServerCounts::connections_refused);
  http("trireme_http_malformed_total", "Requests that are no HTTP, or beyond a limit",
       &http::ServerCounts::requests_malformed);
  http("trireme_http_timeouts_total", "Connections closed because their client was too slow",
       &http::ServerCounts::timeouts);
  const auto grpc = [this](uint64_t http::ServerCounts::*member) {
    return [this, member] {
      return has_listeners_ && grpc_ ? static_cast<double>(grpc_->counts().*member) : 0.0;
    };
  };
  metrics_.gauge_from("trireme_grpc_connections_open", "gRPC connections open now", {},
                      grpc(&http::ServerCounts::connections_open));
  metrics_.counter_from("trireme_grpc_connections_accepted_total", "gRPC connections accepted", {},
                        grpc(&http::ServerCounts::connections_accepted));
  metrics_.counter_from("trireme_grpc_connections_refused_total", "gRPC connections beyond --max-connections",
                        {}, grpc(&http::ServerCounts::connections_refused));
  metrics_.counter_from("trireme_traces_dropped_total", "Traces that could not be written", {},
                        [this] { return static_cast<double>(core_.tracer().dropped()); });
  metrics_.gauge_from("trireme_http_connections_open", "Connections open now", {},
                      count(&http::ServerCounts::connections_open));
}

}  // namespace trireme::serve
