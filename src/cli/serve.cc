// trireme serve: serves a model repository over HTTP until SIGTERM or SIGINT, then drains.
#include <algorithm>
#include <csignal>
#include <filesystem>
#include <pthread.h>

#include "cli/verb.h"
#include "comm/world.h"
#include "engine/rank_service.h"
#include "serve/idle_memory.h"
#include "serve/served_model.h"
#include "serve/server.h"
#include "serve/triton_flags.h"
#include "train/task.h"

namespace trireme::cli {
namespace {

/// Holds the two signals back for this thread and all it starts, so that sigwait gets them.
sigset_t block_signals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGINT);
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  return set;
}

/// A full disk and a log that nobody reads any more are errors of a write, not the end of the server.
void ignore_write_signals() {
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
}

/// Checkpoints are models as they lie: the newest one of a run directory, whatever ranks wrote it.
serve::OtherModels checkpoints() {
  return {.holds = train::has_checkpoint,
          .open = [](const std::string& path) { return train::model_of_checkpoint(path, false); },
          .fingerprint = train::find_checkpoint};
}

/// A run directory in the repository's place is a repository of that run alone.
void serve_one_run(serve::ServeOptions& options) {
  const std::vector<std::string>& roots = options.model_repository;
  const auto at = std::find_if(roots.begin(), roots.end(), train::has_checkpoint);
  if (at == roots.end()) return;
  base::require(
      roots.size() == 1 && options.model_control != serve::ModelControl::poll, "'", *at,
      "' is a run: give the directory above it to serve it beside others or follow its checkpoints");
  const std::filesystem::path run = std::filesystem::canonical(*at);
  options.model_repository = {run.parent_path().string()};
  options.model_control = serve::ModelControl::explicitly;
  options.load_model = {run.filename().string()};
}

/// Until a signal comes, or a rank of the job is gone, after which it has to start again.
int wait_for_end(const sigset_t& signals, const engine::RankService* service, const base::Clock& clock) {
  constexpr timespec kLook{.tv_sec = 0, .tv_nsec = 100 * base::kNsPerMs};
  serve::IdleMemory memory;
  for (;;) {
    const int signal = sigtimedwait(&signals, nullptr, &kLook);
    if (signal > 0) return signal;
    if (service != nullptr && service->is_lost()) return 0;
    memory.look(clock.now_ns());
  }
}

int serve_here(const serve::ServeOptions& options, const sigset_t& signals, base::Env& env) {
  const int64_t start_ns = env.clock.now_ns();
  serve::Server server(options, env);
  env.log.info("serve", "listening",
               {{"host", options.host},
                {"metrics_port", server.metrics_port()},
                {"grpc_port", server.grpc_port()},
                {"port", server.port()}});
  server.load();
  const auto seconds = [&](int64_t since_ns) {
    return static_cast<double>(env.clock.now_ns() - since_ns) * 1e-9;
  };
  env.log.info("serve", "ready",
               {{"models", server.repository().catalog()->serving().size()},
                {"port", server.port()},
                {"seconds", seconds(start_ns)}});
  const int signal = wait_for_end(signals, options.service, env.clock);
  if (signal == 0) env.log.error("serve", "rank_lost", {});
  env.log.info("serve", "draining", {{"signal", signal}});
  const int64_t drain_ns = env.clock.now_ns();
  pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);  // a second signal ends the program at once
  const bool all = server.drain();
  env.log.info("serve", "stopped", {{"answered_all", all ? "yes" : "no"}, {"seconds", seconds(drain_ns)}});
  return all && signal != 0 ? 0 : 6;
}

/// One process of a launched job: the first rank serves, the others follow its models.
int serve_in_job(serve::ServeOptions options, const sigset_t& signals, base::Env& env) {
  const engine::SessionOptions own{.threads = options.threads, .strategy = options.ranks.read()};
  int code = 0;
  comm::run_ranks(
      {.kind = comm::RankKind::mpi, .ranks = own.strategy.world()}, [&](comm::Communicator& world) {
        if (world.rank() != 0) {
          return engine::follow_service(
              world, own, [&](const std::string& key) { return serve::load_to_follow(key, options.others); });
        }
        engine::RankService service(world);
        options.service = &service;
        code = serve_here(options, signals, env);
        if (service.is_lost())
          base::fail(base::ErrorCode::unavailable, "a rank that held the models is gone");
      });
  return code;
}

}  // namespace

int serve_main(std::span<const std::string> words, base::Env& env) {
  const serve::TritonFlags flags = serve::translate_triton_flags(words);
  serve::ServeOptions options;
  if (!parse(options, flags.words, "serve")) return 0;
  for (const std::string& note : flags.notes)
    env.log.info("serve", "option_without_effect", {{"option", note}});
  options.others = checkpoints();
  serve_one_run(options);
  const sigset_t signals = block_signals();
  ignore_write_signals();
  const bool is_job = options.ranks.read().world() > 1 && comm::chosen_kind({}) == comm::RankKind::mpi;
  return is_job ? serve_in_job(options, signals, env) : serve_here(options, signals, env);
}

std::string serve_markdown() { return options_markdown<serve::ServeOptions>(); }

}  // namespace trireme::cli
