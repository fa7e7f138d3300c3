// Starts the workers on this machine and handles their ends.
#include "cli/batch/local_workers.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <utility>

#include "base/error.h"
#include "base/files/file.h"
#include "base/machine/cpu_info.h"
#include "batch/job_plan.h"
#include "batch/status.h"
#include "cli/train_command.h"

namespace trireme::cli {
namespace {

constexpr int64_t kPollNs = 200 * base::kNsPerMs;
constexpr int64_t kDeadlineNs = 2 * base::kNsPerSecond;
constexpr int kRestartsOfWorker = 3;
constexpr int kBudgetSpent = 1;

/// The code that says more about why a job is not done: a fault before a spent budget before a stop.
int gravest(int a, int b) {
  const auto rank = [](int code) {
    if (code == 0) return 0;
    return code == kInterrupted ? 1 : code == kBudgetSpent ? 2 : 3;
  };
  return rank(b) > rank(a) ? b : a;
}

}  // namespace

LocalWorkers::LocalWorkers(const batch::JobOptions& options, std::span<const std::string> words,
                           base::Env& env)
    : options_(options),
      words_(words.begin(), words.end()),
      env_(env),
      wanted_(options.deadline.ns > 0 ? 1 : options.workers) {}

/// The flags for the workers come last, because a later flag overrides the same one before it.
std::vector<std::string> LocalWorkers::line_of(int number) const {
  std::vector<std::string> line{std::filesystem::read_symlink("/proc/self/exe").string(), "batch"};
  line.insert(line.end(), words_.begin(), words_.end());
  const auto flag = [&](const char* name, const std::string& value) {
    line.emplace_back(name);
    line.push_back(value);
  };
  const int threads = std::max(1, base::read_cpu_info().threads() / options_.workers);
  line.emplace_back("--quiet");
  flag("--workers", "1");
  flag("--metrics-port", "0");
  if (options_.model.threads == 0)
    flag("--threads", std::to_string(std::max(1, threads / options_.model.instances)));
  if (options_.model.front_threads == 0) flag("--front-threads", std::to_string(threads));
  if (!options_.trace.empty() && number > 0) flag("--trace", base::concat(options_.trace, ".", number));
  return line;
}

void LocalWorkers::start_missing(const HeldSignals& signals) {
  const int null = ::open("/dev/null", O_WRONLY | O_CLOEXEC);
  for (int number = 0; static_cast<int>(running_.size()) < wanted_; ++number) {
    if (std::ranges::any_of(running_, [&](const Child& c) { return c.number == number; })) continue;
    const pid_t process = start_process(line_of(number), {.mask = signals.before(), .output = null});
    running_.push_back({.process = process, .number = number});
    env_.log.info("batch", "worker", {{"number", number}, {"process", process}});
  }
  if (null >= 0) ::close(null);
}

void LocalWorkers::send(int signal) const {
  for (const Child& child : running_) ::kill(child.process, signal);
}

void LocalWorkers::take_end(const Child& child, int status) {
  if (WIFSIGNALED(status)) {
    env_.log.warning("batch", "worker_killed",
                     {{"number", child.number}, {"signal", strsignal(WTERMSIG(status))}});
    const bool starts_again = !stops_ && ++restarts_ <= kRestartsOfWorker * options_.workers;
    if (!starts_again) code_ = gravest(code_, stops_ ? kInterrupted : 128 + WTERMSIG(status));
    if (!starts_again) wanted_ = 0;
    return;
  }
  const int code = WEXITSTATUS(status);
  wanted_ = 0;  // a worker that ends by itself has a reason that holds for all
  if (code == 0) {
    is_done_ = true;
    return;
  }
  code_ = gravest(code_, code);
  if (code == kInterrupted || stops_) return;  // the others end for their own reasons, or end with the job
  stops_ = true;
  send(SIGTERM);
}

void LocalWorkers::reap() {
  for (size_t i = 0; i < running_.size();) {
    int status = 0;
    const Child child = running_[i];
    if (::waitpid(child.process, &status, WNOHANG) == 0) {
      ++i;
      continue;
    }
    running_.erase(running_.begin() + static_cast<std::ptrdiff_t>(i));
    take_end(child, status);
  }
}

/// Raises the number of workers to what the remaining work needs at the present rate to meet the deadline.
void LocalWorkers::look_at_deadline() {
  const int64_t now = env_.clock.now_ns();
  const bool may_grow = options_.deadline.ns > 0 && wanted_ > 0 && wanted_ < options_.workers;
  if (!may_grow || now - looked_ns_ < kDeadlineNs) return;
  looked_ns_ = now;
  if (!base::file_exists(batch::directory_of(options_, 0).manifest())) return;
  const batch::JobStatus status = batch::status_of(options_, env_.clock);
  // Workers on other machines count too.
  const auto others = static_cast<int64_t>(status.working.size()) - static_cast<int64_t>(running_.size());
  const int64_t needed = batch::workers_for_deadline(options_, status) - std::max<int64_t>(0, others);
  const auto more = static_cast<int>(std::clamp<int64_t>(needed, wanted_, options_.workers));
  if (more == wanted_) return;
  env_.log.info("batch", "more_workers", {{"from", wanted_}, {"to", more}, {"because", "of the deadline"}});
  wanted_ = more;
}

/// Calls `look`. The workers go on where the job's directory cannot be read for a while.
void LocalWorkers::unless_lost(const std::function<void()>& look) const {
  try {
    look();
  } catch (const base::Error& e) {
    env_.log.warning("batch", "status", {{"error", e.message()}});
  }
}

int LocalWorkers::run(HeldSignals& signals, const std::function<void()>& meanwhile) {
  start_missing(signals);
  while (!running_.empty()) {
    const int signal = signals.wait(kPollNs);
    if (signal != 0 && signal != SIGCHLD) {
      send(std::exchange(stops_, true) ? SIGKILL : SIGTERM);
      wanted_ = 0;
    }
    reap();
    unless_lost([&] {
      if (!stops_) look_at_deadline();
    });
    if (!stops_ && static_cast<int>(running_.size()) < wanted_) start_missing(signals);
    unless_lost(meanwhile);
  }
  return is_done_ ? 0 : code_;
}

}  // namespace trireme::cli
