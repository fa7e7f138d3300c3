// trireme serve: serves a model repository over HTTP until SIGTERM, SIGINT or SIGHUP, then drains.
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <thread>

#include "base/threads/bounded_queue.h"
#include "cli/verb.h"
#include "comm/world.h"
#include "engine/ranks/rank_service.h"
#include "http/descriptor.h"
#include "serve/seeing/idle_memory.h"
#include "serve/repository/load_served_model.h"
#include "serve/core/kserve_settings.h"
#include "serve/server.h"
#include "serve/config/triton_flags.h"
#include "train/task.h"

namespace trireme::cli {
namespace {

/// Blocks the signals that end the server in this thread and in all that it starts, so that sigwait gets
/// them. SIGHUP (a closed terminal) is one of them, unless nohup has set it to be ignored.
sigset_t block_signals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGINT);
  struct sigaction hang_up {};
  sigaction(SIGHUP, nullptr, &hang_up);
  if (hang_up.sa_handler != SIG_IGN) sigaddset(&set, SIGHUP);
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  return set;
}

constexpr int kUnavailable = 6;

/// While models load, which may take minutes, no request is accepted yet: a signal ends the program at once.
class LoadWatch {
 public:
  LoadWatch(const sigset_t& signals, base::Env& env)
      : signal_(signalfd(-1, &signals, SFD_CLOEXEC)), over_(eventfd(0, EFD_CLOEXEC)) {
    thread_ = std::thread([this, env] { wait(env); });
  }
  ~LoadWatch() {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t told = write(over_.get(), &one, sizeof one);
    thread_.join();
  }
  LoadWatch(const LoadWatch&) = delete;
  LoadWatch& operator=(const LoadWatch&) = delete;

 private:
  /// Polls without consuming: a signal that arrives after loading stays pending for wait_for_end().
  void wait(base::Env env) const {
    std::array<pollfd, 2> files = {{{signal_.get(), POLLIN, 0}, {over_.get(), POLLIN, 0}}};
    while (poll(files.data(), files.size(), -1) < 0 && errno == EINTR) continue;
    if (files[1].revents != 0) return;
    env.log.info("serve", "stopped", {{"while", "loading"}});
    std::_Exit(0);
  }

  http::Descriptor signal_, over_;
  std::thread thread_;
};

/// Limits the time from the signal to the program's end, even if a run, load, disk or trace collector hangs.
class ExitLimit {
 public:
  ExitLimit(int64_t limit_ns, base::Env& env) {
    thread_ = std::thread([this, env, until_ns = env.clock.now_ns() + limit_ns] {
      over_.pop_until(until_ns);
      if (over_.closed()) return;
      env.log.error("serve", "exit_forced", {{"reason", "something did not end within --exit-timeout"}});
      std::_Exit(has_answered_all_ ? 0 : kUnavailable);
    });
  }
  ~ExitLimit() {
    over_.close();
    thread_.join();
  }
  ExitLimit(const ExitLimit&) = delete;
  ExitLimit& operator=(const ExitLimit&) = delete;

  void answered_all() { has_answered_all_ = true; }

 private:
  std::atomic<bool> has_answered_all_{false};
  base::BoundedQueue<int> over_{1};
  std::thread thread_;
};

/// A full disk, or a log that nobody reads any more, must fail a write instead of ending the server.
void ignore_write_signals() {
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
}

/// Serves checkpoints as models: of a run directory the latest one, whatever ranks wrote it. Its base model
/// must lie in the repositories too: other paths that a checkpoint names are not opened.
serve::OtherModels checkpoints(const std::vector<std::string>& repositories) {
  return {.holds = train::has_checkpoint,
          .open =
              [repositories](const std::string& path) {
                return train::model_of_checkpoint(path, {.places = repositories});
              },
          .fingerprint = train::find_checkpoint};
}

/// If the repository is itself a run directory, serves that run alone.
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

/// Reads the file of keys again if it has changed; an invalid file changes nothing.
void follow_keys(serve::ApiKeys& keys, base::Env& env) {
  try {
    if (keys.follow()) env.log.info("serve", "keys_read", {{"keys", keys.size()}});
  } catch (const base::Error& error) {
    env.log.error("serve", "keys_not_read", {{"reason", error.message()}});
  }
}

/// Waits for a signal, or until a rank of the job is lost, after which the job has to be restarted.
int wait_for_end(const sigset_t& signals, const engine::RankService* service, serve::ApiKeys& keys,
                 base::Env& env) {
  constexpr timespec kLook{.tv_sec = 0, .tv_nsec = 100 * base::kNsPerMs};
  constexpr int kLooksAtKeys = 5;  // one in this many rounds checks the file of keys
  serve::IdleMemory memory;
  for (int looks = 1;; ++looks) {
    if (looks % kLooksAtKeys == 0) follow_keys(keys, env);
    const int signal = sigtimedwait(&signals, nullptr, &kLook);
    if (signal > 0) return signal;
    if (service != nullptr && service->is_lost()) return 0;
    memory.look(env.clock.now_ns());
  }
}

int serve_here(const serve::ServeOptions& options, const sigset_t& signals, base::Env& env) {
  const int64_t start_ns = env.clock.now_ns();
  std::optional<ExitLimit> limit;  // declared first, so that it outlives the server, whose end it limits
  serve::Server server(options, env);
  env.log.info("serve", "listening",
               {{"host", options.access.host},
                {"metrics_port", server.metrics_port()},
                {"pages_port", server.pages_port()},
                {"grpc_port", server.grpc_port()},
                {"port", server.port()}});
  {
    const LoadWatch watch(signals, env);
    server.load();
  }
  const auto seconds = [&](int64_t since_ns) {
    return static_cast<double>(env.clock.now_ns() - since_ns) * 1e-9;
  };
  env.log.info("serve", "ready",
               {{"models", server.repository().catalog()->serving().size()},
                {"port", server.port()},
                {"seconds", seconds(start_ns)}});
  const int signal = wait_for_end(signals, options.service, server.repository().keys(), env);
  if (signal == 0) env.log.error("serve", "rank_lost", {});
  env.log.info("serve", "draining", {{"signal", signal}});
  const int64_t drain_ns = env.clock.now_ns();
  pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);     // a second signal ends the program at once
  constexpr int64_t kMoreNs = 2 * base::kNsPerSecond;  // for the rest of the shutdown
  limit.emplace(options.exit_timeout.ns + kMoreNs, env);
  const bool all = server.drain();
  if (all) limit->answered_all();
  env.log.info("serve", "stopped", {{"answered_all", all ? "yes" : "no"}, {"seconds", seconds(drain_ns)}});
  return all && signal != 0 ? 0 : kUnavailable;
}

/// Runs one process of a launched job: the first rank serves, the others follow its models.
int serve_in_job(serve::ServeOptions options, const sigset_t& signals, base::Env& env) {
  const int ranks = options.ranks.read().world();
  int code = 0;
  comm::run_ranks({.kind = comm::RankKind::mpi, .ranks = ranks}, [&](comm::Communicator& world) {
    if (world.rank() != 0) {
      return engine::follow_service(
          world, [&](const std::string& key) { return serve::load_to_follow(key, options); });
    }
    engine::RankService service(world);
    options.service = &service;
    code = serve_here(options, signals, env);
    if (service.is_lost()) base::fail(base::ErrorCode::unavailable, "a rank that held the models is gone");
  });
  return code;
}

}  // namespace

int serve_main(std::span<const std::string> words, base::Env& env) {
  const serve::TritonFlags flags = serve::translate_triton_flags(words);
  serve::ServeOptions options;
  if (!parse(options, flags.words, "serve")) return 0;
  serve::check_tls(flags, options.access);
  if (!flags.log_settings.is_null()) serve::update_log_settings(env.log, flags.log_settings);
  for (const std::string& note : flags.notes)
    env.log.warning("serve", "option_without_effect", {{"option", note}});
  serve_one_run(options);
  options.others = checkpoints(options.model_repository);
  const sigset_t signals = block_signals();
  ignore_write_signals();
  const bool is_job = options.ranks.read().world() > 1 && comm::chosen_kind({}) == comm::RankKind::mpi;
  return is_job ? serve_in_job(options, signals, env) : serve_here(options, signals, env);
}

std::string serve_markdown() { return options_markdown<serve::ServeOptions>(); }

}  // namespace trireme::cli
