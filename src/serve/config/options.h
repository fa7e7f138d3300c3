// What `trireme serve` can be told.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/text/options.h"
#include "engine/ranks/inference_ranks.h"
#include "serve/config/access_options.h"
#include "serve/config/files_options.h"
#include "serve/config/other_models.h"
#include "serve/config/run_limit_options.h"
#include "serve/config/text_options.h"
#include "serve/seeing/tracer.h"

namespace trireme::engine {
class RankService;
}

namespace trireme::serve {

enum class WarmUpLevel { none, compile, run };
/// Who decides what is loaded: the start alone, requests to load and unload, or the files.
enum class ModelControl { none, explicitly, poll };
/// Whether instances wait for the resources that their rate_limiter names.
enum class RateLimit { off, execution_count };

struct ServeOptions {
  std::vector<std::string> model_repository;
  ModelControl model_control = ModelControl::none;
  std::vector<std::string> load_model;
  base::Duration poll_interval{15 * base::kNsPerSecond};
  AccessOptions access;
  int http_port = 8000, http_threads = 2;
  base::Duration http_spin{30 * base::kNsPerUs};
  int max_connections = 16384;
  int instances = 1, threads = 0;
  std::string device = "cpu";
  bool pin = false;
  base::Duration halt_poll{0};
  passes::WeightOptions weights;
  engine::InferenceRanks ranks = {};
  engine::CacheOptions cache = {};
  TextOptions texts = {};
  int max_queue = 1024;
  int64_t max_batch = 32;
  base::Duration batch_window{2 * base::kNsPerMs};
  bool whole_batches = false;
  std::vector<int64_t> buckets{1, 2, 3, 4, 6, 8, 12, 16, 24, 32};
  std::vector<int64_t> length_buckets{16, 32, 64, 128, 256, 512};
  base::Duration keep_alive{15 * base::kNsPerSecond};
  base::Duration request_timeout{30 * base::kNsPerSecond}, exit_timeout{30 * base::kNsPerSecond};
  base::ByteSize max_request_bytes{int64_t{64} << 20}, memory_limit{0};
  WarmUpLevel warm_up = WarmUpLevel::compile;
  bool strict_readiness = false;
  int unready_status = 503;
  int grpc_port = 8001, metrics_port = -1;
  bool allow_client_shm = false;
  bool deadline_aware = false;
  int delay_scheduler = 0;
  RateLimit rate_limit = RateLimit::off;
  std::vector<std::string> rate_limit_resource;
  base::Duration slo_p99{0};
  RunLimitOptions runs;
  std::string tenant_by;
  std::vector<std::string> tenant;
  int64_t tenants_unlisted = 64;
  bool metric_summaries = false;
  TracerOptions trace;
  base::ByteSize cache_size{int64_t{64} << 20};
  double price_per_hour = 0;
  std::string prices, server_name = "trireme";
  FilesOptions kept;
  OtherModels others = {};                 ///< no option: given by the program
  engine::RankService* service = nullptr;  ///< likewise: the ranks of a job that hold the models

  /// How requests wait, form batches and share instances.
  void scheduling_fields(base::OptionList& f) {
    f.add("max_queue", &max_queue, "requests that may wait for a model; further ones get 503").at_least(1);
    f.add("max_batch", &max_batch, "rows of a batch where the model's config does not say")
        .at_least(1)
        .at_most(65536);
    f.add("batch_window", &batch_window,
          "longest wait of a request for a fuller batch; ends when as many wait as usual");
    f.add("whole_batches", &whole_batches,
          "a batch takes all that fits; else it ends where more rows were seen to make none cheaper");
    f.add("buckets", &buckets, "row counts that batches are filled up to").at_least(1);
    f.add("length_buckets", &length_buckets, "token counts that texts are filled up to").at_least(1);
    f.add("request_timeout", &request_timeout, "longest time in the queue; 0: no limit");
    f.add("deadline_aware", &deadline_aware,
          "timeouts bound the answer, not the wait: what cannot be done in time is refused before it runs");
    f.add("delay_scheduler", &delay_scheduler, "tests: nothing of a model runs before so many requests wait")
        .at_least(0);
    f.add("slo_p99", &slo_p99,
          "goal of the 99th percentile: window, rows and instances of a batch are found while models serve, "
          "up to --instances and max_batch_size; 0: as they are set");
    runs.fields(f);
    f.add_choice("rate_limit", &rate_limit, {"off", "execution_count"},
                 "instances run as they come; they wait for the resources of their rate_limiter");
    f.add("rate_limit_resource", &rate_limit_resource,
          "name:count[:0 | :global]: how much there is of a resource; else the most that an instance needs");
    f.add("tenant_by", &tenant_by,
          "what tells tenants apart, who then have fair shares of each model: parameter (the request's "
          "`tenant`), header:NAME or key (of --api-keys, the default there); empty: nothing");
    f.add("tenant", &tenant,
          "NAME=WEIGHT or NAME=WEIGHT:SECRET (what the header holds): shares; others have 1");
    f.add("tenants_unlisted", &tenants_unlisted,
          "tenants of their own that are not listed; further ones share")
        .at_least(0)
        .at_most(4096);
  }

  void fields(base::OptionList& f) {
    f.add("model_repository", &model_repository,
          "directory with one directory for each model: ONNX, Hugging Face, or a run of `trireme train`; "
          "several: a name may be in one only")
        .required();
    f.add_choice("model_control", &model_control, {"none", "explicit", "poll"},
                 "all models once, at the start; on request; all, following changes of the files");
    f.add("load_model", &load_model, "with explicit control: models to load at the start; * for all");
    f.add("poll_interval", &poll_interval, "with poll control: time between two looks at the files");
    access.fields(f);
    f.add("http_port", &http_port, "port; 0: the system picks one, the log says which")
        .at_least(0)
        .at_most(65535);
    f.add("http_threads", &http_threads, "threads of each listener that read and write connections")
        .at_least(1)
        .at_most(256);
    f.add("http_spin", &http_spin,
          "how long such a thread with few connections looks for the next request before it sleeps, where "
          "small requests follow answers as quickly: less latency, at most so much CPU a request; 0: it "
          "sleeps at once");
    f.add("keep_alive", &keep_alive,
          "a stream of the OpenAI API that was silent for so long is sent a comment; 0: never");
    f.add("max_connections", &max_connections,
          "connections of each listener open at once; further ones get 503, over gRPC an end")
        .at_least(1)
        .at_most(1 << 20);
    f.add("instances", &instances, "batches of a model that run side by side").at_least(1).at_most(1024);
    f.add("threads", &threads, "threads of an instance; 0: all cores shared among the instances").at_least(0);
    f.add("device", &device,
          "where models run: cpu, cuda:N, or emulated (CUDA kernels on the host, for tests)");
    f.add("pin", &pin, "bind the threads of instances to cores");
    f.add("halt_poll", &halt_poll,
          "on virtual machines: so long after a batch idle cores wait in a loop instead of halting, at the "
          "lowest priority, because a hypervisor moves those that wake; 0: they halt");
    weights.fields(f);
    ranks.fields(f);
    cache.fields(f);
    texts.fields(f);
    scheduling_fields(f);
    f.add("cache_size", &cache_size, "answers kept for models with response_cache; 0: none");
    f.add("metric_summaries", &metric_summaries,
          "/metrics also has nv_inference_*_summary_us: quantiles of about the last minute");
    f.add("trace_file", &trace.file, "where traces of requests are written; empty: nowhere");
    f.add("trace_otlp", &trace.otlp_url, "OpenTelemetry collector, http://host:4318/v1/traces; empty: none");
    f.add_choice("trace_form", &trace.form, {"triton", "perfetto"},
                 "of the trace file: Triton's JSON; trace events that Perfetto opens");
    f.add("trace", &trace.is_on, "trace from the start; else /v2/trace/setting switches it on");
    f.add("trace_rate", &trace.rate, "one of so many requests is traced, besides those whose caller samples")
        .at_least(1);
    kept.fields(f);
    f.add("exit_timeout", &exit_timeout, "time for requests in flight after SIGTERM");
    f.add("max_request_bytes", &max_request_bytes,
          "largest HTTP body or gRPC message, as it comes and inflated");
    f.add("memory_limit", &memory_limit,
          "for models, requests and unread answers; 0: four fifths of the control group's or machine's");
    f.add_choice("warm_up", &warm_up, {"none", "compile", "run"},
                 "before ready: nothing; every bucket compiled and the smallest run; every bucket run");
    f.add("strict_readiness", &strict_readiness, "not ready while any model failed to load");
    f.add("unready_status", &unready_status,
          "HTTP status where it is asked whether server or model is ready and it is not; Triton's is 400")
        .at_least(400)
        .at_most(599);
    listener_fields(f);
  }

 private:
  void listener_fields(base::OptionList& f) {
    f.add("grpc_port", &grpc_port, "port of the gRPC listener; 0: the system picks one; -1: none")
        .at_least(-1)
        .at_most(65535);
    f.add("metrics_port", &metrics_port,
          "another port for /metrics alone, as Triton's 8002; 0: the system picks one; -1: none")
        .at_least(-1)
        .at_most(65535);
    f.add("allow_client_shm", &allow_client_shm, "clients may name POSIX shared memory objects as tensors");
    f.add("price_per_hour", &price_per_hour,
          "of this machine: /metrics then has what a million inferences or tokens cost; 0: none")
        .at_least(0);
    f.add("prices", &prices, "YAML file with prices an hour: machine, core, gpu; instead or besides");
    f.add("server_name", &server_name, "name in the server metadata; triton pleases scripts that check it");
  }
};

}  // namespace trireme::serve
