// One start of a command on its ranks: the launcher's words, the process, and the signals passed on to it.
#pragma once

#include <sys/types.h>

#include <csignal>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace trireme::cli {

enum class LaunchKind { local, mpi, slurm };

struct LaunchWords {
  LaunchKind kind = LaunchKind::local;
  int ranks = 1;
  std::string hosts;                 ///< for mpirun: "a:4,b:4"; empty: this machine
  std::vector<std::string> command;  ///< program and its words
};

/// The words that start the ranks: the command itself, or mpirun or srun before it.
std::vector<std::string> launch_line(const LaunchWords& words);

/// As a shell reads it.
std::string quoted(const std::vector<std::string>& words);

/// Signals that end a run, held back in this process and passed on to its job.
class HeldSignals {
 public:
  HeldSignals();
  ~HeldSignals();
  HeldSignals(const HeldSignals&) = delete;
  HeldSignals& operator=(const HeldSignals&) = delete;

  /// Waits for a signal (SIGINT, SIGTERM, SIGHUP or a child's end) for so long; 0 if none came.
  int wait(int64_t limit_ns);
  const sigset_t& before() const { return before_; }

 private:
  sigset_t held_{}, before_{};
};

struct ProcessForm {
  sigset_t mask{};               ///< signals that it holds back
  int output = -1, errors = -1;  ///< its stdout and stderr; negative: ours
};

/// Starts a program in a process group of its own, without a standard input; it gets SIGTERM when this
/// process ends. One that cannot be run ends with 127. Throws exhausted where there is no room for a process.
pid_t start_process(const std::vector<std::string>& line, const ProcessForm& form);

struct JobEnd {
  int code = 0;              ///< as shells count: exit code, or 128 + signal
  bool interrupted = false;  ///< a signal came, and was passed on
};

/// Runs the job to its end, in a process group of its own. The first signal goes to every rank that is
/// reachable, so that trainers can save; a second one ends the launcher's job at once. `meanwhile` is called
/// some 20 times a second. Throws not_found if the program does not start.
JobEnd run_job(const LaunchWords& words, HeldSignals& signals, const std::function<void()>& meanwhile);

}  // namespace trireme::cli
