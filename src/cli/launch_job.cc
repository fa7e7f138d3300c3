// Starts mpirun, srun or the command itself, and forwards signals to it.
#include "cli/launch_job.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <fstream>
#include <optional>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/machine/cpu_info.h"
#include "base/error.h"

namespace trireme::cli {
namespace {

constexpr int64_t kPollNs = 50 * base::kNsPerMs;
constexpr int kCannotRun = 127;  // the exit code of shells
constexpr int kNotLaunched = 1;

/// srun (22.05) exits with 0 when Slurm could not launch its tasks, and only prints that: its stderr is
/// forwarded and searched for the message.
class ErrorsOfSrun {
 public:
  ErrorsOfSrun() {
    if (::pipe2(ends_.data(), O_CLOEXEC) != 0)
      base::fail(base::ErrorCode::exhausted, "launch: no pipe for srun: ", std::strerror(errno));
  }
  ~ErrorsOfSrun() {
    finish();
    ::close(ends_[0]);
  }
  ErrorsOfSrun(const ErrorsOfSrun&) = delete;
  ErrorsOfSrun& operator=(const ErrorsOfSrun&) = delete;

  /// The job's stderr. Call begin() once the job's process has inherited it.
  int end() const { return ends_[1]; }
  void begin() {
    close_end();
    reader_ = std::thread([this] { read(); });
  }
  /// Called after the job's end. Returns whether srun said that a task was not launched.
  bool finish() {
    close_end();
    if (reader_.joinable()) reader_.join();
    return says_not_launched_;
  }

 private:
  void close_end() {
    if (ends_[1] >= 0) ::close(std::exchange(ends_[1], -1));
  }
  void read() {
    constexpr size_t kLineBytes = 4096;  // the part of a line that is examined
    sigset_t pipe;                       // a closed stderr must not end the job
    sigemptyset(&pipe);
    sigaddset(&pipe, SIGPIPE);
    ::pthread_sigmask(SIG_BLOCK, &pipe, nullptr);
    std::array<char, 4096> buffer;
    std::string line;
    for (ssize_t n = 0; (n = ::read(ends_[0], buffer.data(), buffer.size())) > 0;) {
      const std::string_view bytes(buffer.data(), static_cast<size_t>(n));
      for (size_t sent = 0; sent < bytes.size();) {
        const ssize_t now = ::write(STDERR_FILENO, bytes.data() + sent, bytes.size() - sent);
        if (now <= 0) break;
        sent += static_cast<size_t>(now);
      }
      for (const char c : bytes) {
        if (c != '\n' && line.size() < kLineBytes) line += c;
        if (c != '\n') continue;
        says_not_launched_ |= line.starts_with("srun: error: ") && line.find(" launch failed") != line.npos;
        line.clear();
      }
    }
  }

  std::array<int, 2> ends_{-1, -1};
  bool says_not_launched_ = false;
  std::thread reader_;
};

/// The child's side of a fork: may only call functions that are async-signal-safe.
[[noreturn]] void become(char* const* words, const ProcessForm& form) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);  // a job must not outlive its supervisor
  ::pthread_sigmask(SIG_SETMASK, &form.mask, nullptr);
  const int null = ::open("/dev/null", O_RDONLY);
  if (null >= 0) ::dup2(null, STDIN_FILENO);
  if (form.output >= 0) ::dup2(form.output, STDOUT_FILENO);
  if (form.errors >= 0) ::dup2(form.errors, STDERR_FILENO);
  ::execvp(words[0], words);
  ::_exit(kCannotRun);
}

/// The child processes of `parent` on this machine.
std::vector<pid_t> children_of(pid_t parent) {
  std::vector<pid_t> out;
  std::ifstream list(base::concat("/proc/", parent, "/task/", parent, "/children"));
  for (pid_t child = 0; list >> child;) out.push_back(child);
  return out;
}

/// mpirun and srun kill their ranks on SIGTERM. So that trainers can save, a first signal goes to the ranks
/// directly, or as the SIGUSR1 that srun forwards. A second signal ends the job.
void pass_on(LaunchKind kind, pid_t job, int signal, bool first) {
  if (kind == LaunchKind::slurm && first) {
    ::kill(job, SIGUSR1);
    return;
  }
  const std::vector<pid_t> ranks = kind == LaunchKind::mpi && first ? children_of(job) : std::vector<pid_t>{};
  for (const pid_t rank : ranks) ::kill(rank, signal);
  if (ranks.empty()) ::kill(job, signal);
}

}  // namespace

pid_t start_process(const std::vector<std::string>& line, const ProcessForm& form) {
  std::vector<std::string> copies = line;
  std::vector<char*> words;
  for (std::string& w : copies) words.push_back(w.data());
  words.push_back(nullptr);
  const pid_t child = ::fork();
  if (child < 0)
    base::fail(base::ErrorCode::exhausted, "no process for '", line[0], "': ", std::strerror(errno));
  if (child == 0) become(words.data(), form);
  ::setpgid(child, child);  // both processes do this, as either may run first
  return child;
}

std::vector<std::string> launch_line(const LaunchWords& words) {
  std::vector<std::string> line;
  const std::string ranks = std::to_string(words.ranks);
  if (words.kind == LaunchKind::mpi) {
    // Ranks divide the processors among themselves (comm/world).
    line = {"mpirun", "-n", ranks, "--bind-to", "none"};
    if (!words.hosts.empty()) {
      line.insert(line.end(), {"--host", words.hosts});
    } else if (words.ranks > base::read_cpu_info().threads()) {
      line.emplace_back("--oversubscribe");
    }
  } else if (words.kind == LaunchKind::slurm) {
    line = {"srun", "-n", ranks, "--mpi=pmix", "--cpu-bind=none", "--kill-on-bad-exit=1"};
  }
  line.insert(line.end(), words.command.begin(), words.command.end());
  return line;
}

std::string quoted(const std::vector<std::string>& words) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./=:,+@%^";
  std::string out;
  for (const std::string& word : words) {
    if (!out.empty()) out += ' ';
    if (!word.empty() && word.find_first_not_of(kPlain) == std::string::npos) {
      out += word;
      continue;
    }
    out += '\'';
    for (const char c : word) {
      if (c == '\'') {
        out += "'\\''";
      } else {
        out += c;
      }
    }
    out += '\'';
  }
  return out;
}

HeldSignals::HeldSignals() {
  sigemptyset(&held_);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGCHLD}) sigaddset(&held_, signal);
  ::pthread_sigmask(SIG_BLOCK, &held_, &before_);
}

HeldSignals::~HeldSignals() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

int HeldSignals::wait(int64_t limit_ns) {
  const timespec limit{.tv_sec = limit_ns / base::kNsPerSecond, .tv_nsec = limit_ns % base::kNsPerSecond};
  const int signal = ::sigtimedwait(&held_, nullptr, &limit);
  return signal > 0 ? signal : 0;
}

JobEnd run_job(const LaunchWords& words, HeldSignals& signals, const std::function<void()>& meanwhile) {
  const std::vector<std::string> line = launch_line(words);
  std::optional<ErrorsOfSrun> errors;
  if (words.kind == LaunchKind::slurm) errors.emplace();
  const pid_t job = start_process(line, {.mask = signals.before(), .errors = errors ? errors->end() : -1});
  if (errors) errors->begin();
  JobEnd end;
  int status = 0;
  while (::waitpid(job, &status, WNOHANG) == 0) {
    const int signal = signals.wait(kPollNs);
    if (signal != 0 && signal != SIGCHLD) {
      pass_on(words.kind, job, signal, !end.interrupted);
      end.interrupted = true;
    }
    meanwhile();
  }
  ::kill(-job, SIGKILL);  // ends what is left of its group
  end.code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  if (errors && errors->finish() && end.code == 0) end.code = kNotLaunched;
  if (end.code == kCannotRun) base::fail(base::ErrorCode::not_found, "cannot run '", line[0], "'");
  return end;
}

}  // namespace trireme::cli
