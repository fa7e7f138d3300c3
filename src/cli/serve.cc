// trireme serve: serves a model repository over HTTP until SIGTERM or SIGINT, then drains.
#include <csignal>
#include <pthread.h>

#include "cli/verb.h"
#include "serve/server.h"

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

}  // namespace

int serve_main(std::span<const std::string> words, base::Env& env) {
  serve::ServeOptions options;
  if (!parse(options, words, "serve")) return 0;
  const sigset_t signals = block_signals();
  const int64_t start_ns = env.clock.now_ns();
  serve::Server server(options, env);
  env.log.info("serve", "listening",
               {{"host", options.host}, {"grpc_port", server.grpc_port()}, {"port", server.port()}});
  server.load();
  const auto seconds = [&](int64_t since_ns) {
    return static_cast<double>(env.clock.now_ns() - since_ns) * 1e-9;
  };
  env.log.info("serve", "ready",
               {{"models", server.repository().catalog()->serving().size()},
                {"port", server.port()},
                {"seconds", seconds(start_ns)}});
  int signal = 0;
  sigwait(&signals, &signal);
  env.log.info("serve", "draining", {{"signal", signal}});
  const int64_t drain_ns = env.clock.now_ns();
  pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);  // a second signal ends the program at once
  const bool all = server.drain();
  env.log.info("serve", "stopped", {{"answered_all", all ? "yes" : "no"}, {"seconds", seconds(drain_ns)}});
  return all ? 0 : 6;
}

std::string serve_markdown() { return options_markdown<serve::ServeOptions>(); }

}  // namespace trireme::cli
