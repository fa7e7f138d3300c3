// The HTTP port of a batch worker: gauges of its latest progress, and the job's status from its directory.
#include "cli/batch/job_port.h"

#include <mutex>
#include <string>
#include <utility>

#include "batch/status.h"
#include "cli/batch/job_page.h"
#include "http/server.h"
#include "serve/seeing/metrics.h"

namespace trireme::cli {
namespace {

constexpr int64_t kFreshNs =
    base::kNsPerSecond;  // how old a status may be, since a new one reads the journal

}  // namespace

struct JobPort::Served {
  Served(int port, const batch::JobOptions& job, const base::Env& env_)
      : options(job),
        env(env_),
        rows(registry.gauge("trireme_batch_rows_done",
                            "Rows that were answered or failed, of finished chunks.")),
        errors(registry.gauge("trireme_batch_rows_failed", "Rows that failed, of finished chunks.")),
        all_rows(registry.gauge("trireme_batch_rows", "Rows of the job.")),
        chunks_done(registry.gauge("trireme_batch_chunks_done", "Chunks that are done.")),
        chunks(registry.gauge("trireme_batch_chunks", "Chunks of the job.")),
        bytes(registry.gauge("trireme_batch_output_bytes", "Bytes written, of finished chunks.")),
        rate(registry.gauge("trireme_batch_rows_per_second", "Rows a second of this worker.")),
        busy(registry.gauge("trireme_batch_model_busy",
                            "Share of the time that the model's instances compute.")),
        left(registry.gauge("trireme_batch_seconds_left",
                            "Seconds until the job is done; -1: not known yet.")),
        server({.port = static_cast<uint16_t>(port), .threads = 1},
               [this](http::Request&& request, http::Reply reply) { answer(request, std::move(reply)); }) {}

  void answer(const http::Request& request, http::Reply reply) {
    if (request.path == "/metrics") {
      reply.send(http::text_response(200, registry.expose(), serve::MetricRegistry::kContentType));
    } else if (request.path == "/status.json") {
      reply.send(http::text_response(200, fresh_status(), "application/json"));
    } else {
      reply.send(request.path == "/" ? job_page()
                                     : http::error_response(404, "there are /, /metrics and /status.json"));
    }
  }

  /// The job's status as JSON; only the job's names while its input is still being cut into chunks.
  std::string fresh_status() {
    const std::lock_guard lock(mutex);
    const int64_t now = env.clock.now_ns();
    if (!status.empty() && now - status_ns < kFreshNs) return status;
    base::Json json = base::Json::object({{"chunks", int64_t{0}}});
    try {
      json = batch::status_of(options, env.clock).json();
    } catch (const base::Error& e) {
      if (e.code() != base::ErrorCode::not_found) throw;
    }
    json.set("model", options.model.model);
    json.set("output", options.output_directory);
    status = json.dump();
    status_ns = now;
    return status;
  }

  const batch::JobOptions& options;
  const base::Env& env;
  std::mutex mutex;
  std::string status;  // guarded by the mutex
  int64_t status_ns = 0;
  serve::MetricRegistry registry;
  serve::MetricGauge &rows, &errors, &all_rows, &chunks_done, &chunks, &bytes, &rate, &busy, &left;
  http::Server server;
};

JobPort::JobPort(int port, const batch::JobOptions& options, const base::Env& env)
    : served_(std::make_unique<Served>(port, options, env)) {}

JobPort::~JobPort() = default;

void JobPort::set(const batch::Progress& p) {
  Served& s = *served_;
  s.rows.set(static_cast<double>(p.rows_done));
  s.errors.set(static_cast<double>(p.errors));
  s.all_rows.set(static_cast<double>(p.rows));
  s.chunks_done.set(static_cast<double>(p.chunks_done));
  s.chunks.set(static_cast<double>(p.chunks));
  s.bytes.set(static_cast<double>(p.bytes));
  s.rate.set(p.rows_per_s);
  s.busy.set(p.busy);
  s.left.set(p.left_s);
}

}  // namespace trireme::cli
