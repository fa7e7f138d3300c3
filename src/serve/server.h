// The server: repository, routes, metrics and the HTTP listener, from start to drain.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "serve/access/browser_guard.h"
#include "serve/grpc/grpc_server.h"
#include "http/server.h"
#include "serve/kserve/kserve.h"
#include "serve/jobs/jobs_api.h"
#include "serve/openai/adapter_api.h"
#include "serve/openai/openai.h"
#include "serve/pages/pages_api.h"
#include "serve/seeing/metrics.h"
#include "serve/repository/repository.h"

namespace trireme::serve {

class Server {
 public:
  /// Listens at once and answers liveness; ready only after load(). `options` and `env` outlive the server.
  Server(const ServeOptions& options, const base::Env& env);
  ~Server();

  /// Loads all models, then turns ready.
  void load();
  /// Turns not ready, stops accepting, answers what is in flight; false if the time was not enough.
  bool drain();
  uint16_t port() const { return http_->port(); }
  /// Of the gRPC listener; 0: there is none.
  uint16_t grpc_port() const { return grpc_ ? grpc_->port() : uint16_t{0}; }
  /// Of the listener for metrics alone; 0: there is none.
  uint16_t metrics_port() const { return metrics_http_ ? metrics_http_->port() : uint16_t{0}; }
  /// Of the listener for pages of prompts; 0: there is none.
  uint16_t pages_port() const { return pages_http_ ? pages_http_->port() : uint16_t{0}; }
  const Repository& repository() const { return repository_; }

 private:
  void handle(http::Request&& request, http::Reply reply) const;
  void handle_jobs(http::Request&& request, http::Reply reply) const;
  void open_pages_port();
  void register_http_metrics();

  const ServeOptions& options_;
  base::Env env_;
  MetricRegistry metrics_;
  Repository repository_;
  KserveCore core_;
  BrowserGuard guard_;
  KserveApi kserve_;
  OpenAiApi openai_;
  AdapterApi adapters_;
  PagesApi pages_;
  std::unique_ptr<JobsApi> jobs_;               ///< null: files and batches are not wanted
  std::unique_ptr<GrpcServer> grpc_;            ///< null: not wanted
  std::unique_ptr<http::Server> http_;          ///< its threads use the others, as the next one's do
  std::unique_ptr<http::Server> metrics_http_;  ///< null: not wanted
  std::unique_ptr<http::Server> pages_http_;    ///< null: no other server asks for pages
  /// The listeners above are there to be asked; their threads run before they are.
  std::atomic<bool> has_listeners_{false};
};

}  // namespace trireme::serve
