// trireme launch: starts a command on its ranks, restarts it when a rank dies, and reports what that cost.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <iostream>

#include "base/machine/cpu_info.h"
#include "base/error.h"
#include "cli/launch_job.h"
#include "cli/launch_train.h"
#include "cli/train_command.h"
#include "cli/verb.h"
#include "comm/mpi.h"

namespace trireme::cli {
namespace {

struct LaunchOptions {
  int ranks = 0;
  LaunchKind kind = LaunchKind::local;
  std::string hosts;
  int restarts = 3;
  bool shrink = false;
  bool print = false;
  std::vector<std::string> command;

  void fields(base::OptionList& f) {
    f.add("ranks", &ranks, "ranks, also as -n N; 0: as many as the command's layout has").at_least(0);
    f.add_choice("kind", &kind, {"local", "mpi", "slurm"},
                 "ranks as threads of one process, as processes under mpirun, or under srun");
    f.add("hosts", &hosts, "machines for mpirun with the ranks of each: a:4,b:4");
    f.add("restarts", &restarts, "how often to start again when a rank dies, from the newest checkpoint")
        .at_least(0);
    f.add("shrink", &shrink,
          "start again with the ranks that are left: the largest dp below that divides the batch");
    f.add("print", &print, "print the line that starts the ranks, and end");
    f.add("command", &command, "after --: trireme train …, or any program").positional().required();
  }
};

/// Rewrites "-n 4" and "-n4" before the command as --ranks.
std::vector<std::string> long_flags(std::span<const std::string> words) {
  std::vector<std::string> out;
  bool own = true;
  for (const std::string& word : words) {
    own = own && word != "--";
    if (own && word == "-n") {
      out.emplace_back("--ranks");
    } else if (own && word.starts_with("-n") && word.size() > 2) {
      out.push_back("--ranks=" + word.substr(2));
    } else {
      out.push_back(word);
    }
  }
  return out;
}

/// Exit codes after which a restart is useless: wrong arguments, missing files, unsupported requests.
bool is_final(int code) { return code == 0 || code == kInterrupted || code == 2 || code == 3 || code == 4; }

std::string how_it_ended(int code) {
  constexpr int kSignal = 128;
  return code > kSignal ? base::concat("signal ", code - kSignal) : base::concat("exit ", code);
}

std::string seconds(int64_t ns) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f s", static_cast<double>(ns) / base::kNsPerSecond);
  return text;
}

/// One supervised run, including all its restarts.
class Launch {
 public:
  Launch(const LaunchOptions& options, base::Env& env);

  int run();
  void print() const { std::cout << quoted(launch_line(words(false))) << "\n"; }

 private:
  LaunchWords words(bool again) const;
  int64_t time_of_loss() const;
  void start_again(const JobEnd& end);
  void look_for_restart();
  void sum_up() const;

  const LaunchOptions& options_;
  base::Env& env_;
  std::string program_;
  std::optional<LaunchedTraining> training_;
  int ranks_ = 1;
  int restarts_ = 0;
  int64_t begin_ns_ = 0, started_ns_ = 0;  // wall clock: of the launch, of this start
  int64_t died_ns_ = 0;                    // when the last start died; 0 once the run is training again
  int64_t behind_ns_ = 0, lost_ns_ = 0;    // since the last checkpoint; during the whole launch
};

Launch::Launch(const LaunchOptions& options, base::Env& env)
    : options_(options), env_(env), program_(options.command[0]) {
  const bool ours = std::filesystem::path(program_).filename() == "trireme";
  if (program_ == "trireme") program_ = std::filesystem::read_symlink("/proc/self/exe");
  if (ours && options.command.size() > 1 && options.command[1] == "train") {
    training_.emplace(std::vector<std::string>(options.command.begin() + 2, options.command.end()));
  }
  ranks_ = options.ranks != 0 ? options.ranks : training_ ? training_->ranks() : 1;
  base::require(!training_ || !training_->has_dp() || ranks_ == training_->ranks(), "launch: -n ", ranks_,
                ", but the run's dp, tp and pp make ", training_ ? training_->ranks() : 0,
                " ranks; leave out one of the two");
  if (options.kind == LaunchKind::local) {
    base::require(training_ || ranks_ == 1,
                  "launch: local ranks are threads of `trireme train`; for another ",
                  "program take --kind mpi or slurm");
  } else if (ours && !comm::has_mpi()) {
    base::fail_unsupported("launch: this program was built without MPI: --kind local is what it has");
  }
  base::require(options.hosts.empty() || options.kind == LaunchKind::mpi, "launch: hosts are for --kind mpi");
}

LaunchWords Launch::words(bool again) const {
  std::vector<std::string> command{program_};
  if (training_) {
    const std::vector<std::string> rest = training_->words(ranks_, again);
    command.emplace_back("train");
    command.insert(command.end(), rest.begin(), rest.end());
  } else {
    command.insert(command.end(), options_.command.begin() + 1, options_.command.end());
  }
  return {.kind = options_.kind, .ranks = ranks_, .hosts = options_.hosts, .command = std::move(command)};
}

/// The time since which the work of the start that died is lost and has to be repeated.
int64_t Launch::time_of_loss() const {
  const auto point = training_ ? training_->restart_point() : std::nullopt;
  return point ? std::max(point->wall_ns, started_ns_) : started_ns_;
}

void Launch::start_again(const JobEnd& end) {
  died_ns_ = env_.clock.wall_ns();
  behind_ns_ = died_ns_ - time_of_loss();
  ++restarts_;
  if (options_.shrink) {
    const int fit = training_ ? training_->ranks_that_fit(ranks_ - 1) : ranks_ - 1;
    if (fit == 0) {
      base::fail(base::ErrorCode::unavailable, "launch: a rank died (", how_it_ended(end.code),
                 ") and no layout of ", ranks_ - 1, " ranks fits the batch");
    }
    ranks_ = fit;
  }
  const auto point = training_ ? training_->restart_point() : std::nullopt;
  env_.log.warning("launch", "restart",
                   {{"ended", how_it_ended(end.code)},
                    {"restart", base::concat(restarts_, " of ", options_.restarts)},
                    {"ranks", ranks_},
                    {"from", point ? base::concat("step ", point->step) : std::string("the beginning")},
                    {"behind", seconds(behind_ns_)}});
  if (training_) training_->expect_restart();
}

/// Once a restarted run is training again, reports what the death cost.
void Launch::look_for_restart() {
  if (died_ns_ == 0 || !training_ || !training_->has_restarted()) return;
  const int64_t starting_ns = env_.clock.wall_ns() - died_ns_;
  lost_ns_ += behind_ns_ + starting_ns;
  died_ns_ = 0;
  env_.log.info("launch", "running_again",
                {{"lost", seconds(behind_ns_ + starting_ns)},
                 {"since_checkpoint", seconds(behind_ns_)},
                 {"starting", seconds(starting_ns)}});
}

void Launch::sum_up() const {
  if (restarts_ == 0) return;
  const int64_t now = env_.clock.wall_ns();
  // A restart that never began to train has cost all the time up to now.
  const int64_t open_ns = died_ns_ != 0 && training_ ? behind_ns_ + now - died_ns_ : 0;
  env_.log.info(
      "launch", "time_lost",
      {{"restarts", restarts_}, {"lost", seconds(lost_ns_ + open_ns)}, {"of", seconds(now - begin_ns_)}});
}

int Launch::run() {
  HeldSignals signals;
  begin_ns_ = env_.clock.wall_ns();
  for (;;) {
    const LaunchWords line = words(restarts_ > 0);
    started_ns_ = env_.clock.wall_ns();
    env_.log.info("launch", "start", {{"line", quoted(launch_line(line))}});
    const JobEnd end = run_job(line, signals, [this] { look_for_restart(); });
    if (is_final(end.code) || end.interrupted) {
      sum_up();
      return end.code;
    }
    if (restarts_ == options_.restarts) {
      env_.log.error("launch", "given_up", {{"ended", how_it_ended(end.code)}, {"restarts", restarts_}});
      sum_up();
      return end.code;
    }
    if (!training_) lost_ns_ += env_.clock.wall_ns() - started_ns_;  // all its work has to be repeated
    start_again(end);
  }
}

}  // namespace

int launch_main(std::span<const std::string> words, base::Env& env) {
  LaunchOptions options;
  if (!parse(options, long_flags(words), "launch")) return 0;
  Launch launch(options, env);
  if (options.print) {
    launch.print();
    return 0;
  }
  return launch.run();
}

std::string launch_markdown() { return options_markdown<LaunchOptions>(); }

}  // namespace trireme::cli
