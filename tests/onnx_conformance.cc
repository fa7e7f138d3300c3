// Runs ONNX backend cases (model.onnx with test_data_set_*), each in a process of its own, and prints a line
// of JSON for each.
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <deque>
#include <filesystem>
#include <iostream>

#include "base/error.h"
#include "base/text/json.h"
#include "tests/onnx_case.h"

namespace trireme::tests {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

struct Options {
  std::string root, filter, device = "cpu";
  int jobs = 2;
  int limit_s = 30;
  int memory_gib = 8;  // address space of a case; 0: no limit, which sanitizers need
};

/// A running case: its process, and the pipe from which its line of JSON is read.
struct Job {
  std::string path;
  pid_t pid = -1;
  int pipe = -1;
  std::string text;
  Clock::time_point deadline;
};

std::vector<std::string> find_cases(const Options& options) {
  std::vector<std::string> cases;
  for (const auto& entry : fs::recursive_directory_iterator(options.root)) {
    if (entry.path().extension() != ".onnx") continue;
    const std::string path = entry.path().string();
    if (options.filter.empty() || path.find(options.filter) != std::string::npos) cases.push_back(path);
  }
  std::sort(cases.begin(), cases.end());
  return cases;
}

Job start(const std::string& path, const Options& options) {
  int ends[2];
  if (pipe(ends) != 0) base::fail(base::ErrorCode::exhausted, "no pipe");
  Job job{.path = path, .pipe = ends[0]};
  job.deadline = Clock::now() + std::chrono::seconds(options.limit_s);
  std::cout.flush();
  job.pid = fork();
  if (job.pid == 0) {
    close(ends[0]);
    if (options.memory_gib > 0) {
      // A case that needs more memory fails instead of exhausting the machine.
      const rlim_t bytes = static_cast<rlim_t>(options.memory_gib) << 30;
      const rlimit memory{bytes, bytes};
      setrlimit(RLIMIT_AS, &memory);
    }
    const std::string line = run_case(path, options.device).dump();
    const bool is_written = write(ends[1], line.data(), line.size()) == static_cast<ssize_t>(line.size());
    _exit(is_written ? 0 : 1);
  }
  close(ends[1]);
  return job;
}

/// The line for a case whose process ended without writing one.
base::Json crash_line(const Job& job, int status, bool is_late) {
  base::Json line = describe_case(job.path);
  line.set("status", "crash");
  line.set("reason", is_late               ? std::string("over the time limit")
                     : WIFSIGNALED(status) ? base::concat("signal ", WTERMSIG(status))
                                           : base::concat("exit ", WEXITSTATUS(status)));
  return line;
}

void finish(Job& job, bool is_late) {
  if (is_late) kill(job.pid, SIGKILL);
  int status = 0;
  waitpid(job.pid, &status, 0);
  close(job.pipe);
  const bool is_whole = !is_late && WIFEXITED(status) && WEXITSTATUS(status) == 0 && !job.text.empty();
  std::cout << (is_whole ? job.text : crash_line(job, status, is_late).dump()) << "\n" << std::flush;
}

void run_all(const std::vector<std::string>& cases, const Options& options) {
  std::deque<Job> running;
  size_t next = 0;
  while (next < cases.size() || !running.empty()) {
    while (next < cases.size() && running.size() < static_cast<size_t>(options.jobs)) {
      running.push_back(start(cases[next++], options));
    }
    std::vector<pollfd> waits;
    for (const Job& job : running) waits.push_back({job.pipe, POLLIN, 0});
    poll(waits.data(), waits.size(), 100);
    for (size_t i = waits.size(); i-- > 0;) {
      Job& job = running[i];
      const bool is_late = Clock::now() > job.deadline;
      bool is_over = is_late;
      if (waits[i].revents != 0) {
        char buffer[4096];
        const ssize_t got = read(job.pipe, buffer, sizeof(buffer));
        if (got > 0) job.text.append(buffer, static_cast<size_t>(got));
        is_over = is_over || got <= 0;
      }
      if (!is_over) continue;
      finish(job, is_late);
      running.erase(running.begin() + static_cast<int64_t>(i));
    }
  }
}

int usage() {
  std::cerr << "usage: onnx_conformance DIRECTORY [--filter TEXT] [--jobs N] [--limit SECONDS] [--memory "
               "GIB] [--device NAME]\n";
  return 2;
}

int conformance_main(int count, char** args) {
  Options options;
  for (int i = 1; i < count; ++i) {
    const std::string arg = args[i];
    const bool has_value = i + 1 < count;
    if (arg == "--filter" && has_value) {
      options.filter = args[++i];
    } else if (arg == "--device" && has_value) {
      options.device = args[++i];
    } else if (arg == "--jobs" && has_value) {
      options.jobs = std::max(1, std::atoi(args[++i]));
    } else if (arg == "--limit" && has_value) {
      options.limit_s = std::max(1, std::atoi(args[++i]));
    } else if (arg == "--memory" && has_value) {
      options.memory_gib = std::max(0, std::atoi(args[++i]));
    } else if (options.root.empty() && !arg.starts_with("-")) {
      options.root = arg;
    } else {
      return usage();
    }
  }
  if (options.root.empty() || !fs::is_directory(options.root)) return usage();
  run_all(find_cases(options), options);
  return 0;
}

}  // namespace
}  // namespace trireme::tests

int main(int count, char** args) { return trireme::tests::conformance_main(count, args); }
