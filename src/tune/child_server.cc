// `trireme serve` as a process of its own.
#include "tune/child_server.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <thread>

#include "base/clock.h"
#include "base/error.h"
#include "base/files/file.h"
#include "http/client.h"

namespace trireme::tune {
namespace {

constexpr std::chrono::milliseconds kLook{10};
/// A model may take long to compile; a server that lives and is silent longer than this is given up.
constexpr int kMostLooks = 60'000;
constexpr int kStopLooks = 1'000;

/// The number after `key=` in the line that has `event`; 0: not there yet.
int64_t logged_number(const std::string& log, std::string_view event, std::string_view key) {
  const size_t line = log.find(event);
  if (line == std::string::npos) return 0;
  const size_t end = log.find('\n', line);
  if (end == std::string::npos) return 0;
  const size_t at = log.find(key, line);
  return at == std::string::npos || at > end ? 0 : std::atoll(log.c_str() + at + key.size());
}

/// The last lines of a log, for an error.
std::string tail(const std::string& log) {
  constexpr size_t kMost = 600;
  return log.size() <= kMost ? log : log.substr(log.size() - kMost);
}

/// The number in the line "name: 123 kB" of a file of /proc.
int64_t proc_number(const std::string& path, std::string_view name) {
  const std::string text = base::read_file(path);
  const size_t at = text.find(name);
  return at == std::string::npos ? 0 : std::atoll(text.c_str() + at + name.size());
}

}  // namespace

ChildServer::ChildServer(const std::string& program, const std::string& repository, const std::string& model,
                         const std::string& log, const std::vector<std::string>& more) {
  std::vector<std::string> words{program,           "serve",     "--model-repository", repository,
                                 "--model-control", "explicit",  "--load-model",       model,
                                 "--host",          "127.0.0.1", "--http-port",        "0",
                                 "--grpc-port",     "-1"};
  words.insert(words.end(), more.begin(), more.end());
  start(std::move(words), log);
  try {
    wait_ready(model, log);
  } catch (...) {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    throw;
  }
}

void ChildServer::start(std::vector<std::string> words, const std::string& log) {
  const int fd = ::open(log.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) base::fail(base::ErrorCode::not_found, "cannot write '", log, "'");
  std::vector<char*> argv;
  for (std::string& w : words) argv.push_back(w.data());
  argv.push_back(nullptr);
  const pid_t parent = ::getpid();
  pid_ = ::fork();
  if (pid_ == 0) {  // only calls that are safe after a fork of many threads
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(127);
    ::dup2(fd, STDOUT_FILENO);
    ::dup2(fd, STDERR_FILENO);
    ::execv(argv[0], argv.data());
    ::_exit(127);
  }
  ::close(fd);
  if (pid_ < 0) base::fail(base::ErrorCode::exhausted, "cannot start a process for the server");
}

bool ChildServer::is_running() { return ::waitpid(pid_, nullptr, WNOHANG) == 0; }

void ChildServer::wait_ready(const std::string& model, const std::string& log) {
  for (int look = 0; look < kMostLooks; ++look) {
    const bool runs = is_running();
    const std::string text = base::read_file(log);
    if (!runs) base::fail(base::ErrorCode::unavailable, "the server did not start: ", tail(text));
    if (text.find("model_failed") != std::string::npos)
      base::fail(base::ErrorCode::unavailable, "the server cannot load the model: ", tail(text));
    port_ = static_cast<uint16_t>(logged_number(text, " listening", " port="));
    if (port_ != 0 && text.find(" ready ") != std::string::npos) {
      http::Client client("127.0.0.1", port_);
      if (client.get("/v2/models/" + model + "/ready").status == 200) return;
    }
    std::this_thread::sleep_for(kLook);
  }
  base::fail(base::ErrorCode::unavailable, "the server is not ready after ten minutes");
}

ChildServer::~ChildServer() {
  ::kill(pid_, SIGTERM);
  for (int look = 0; look < kStopLooks; ++look) {
    if (!is_running()) return;
    std::this_thread::sleep_for(kLook);
  }
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

int64_t ChildServer::peak_bytes() const {
  return proc_number("/proc/" + std::to_string(pid_) + "/status", "VmHWM:") * 1024;
}

int64_t ChildServer::cpu_ns() const {
  // pid (name) state ...: user and system time are fields 14 and 15, in ticks.
  const std::string text = base::read_file("/proc/" + std::to_string(pid_) + "/stat");
  size_t at = text.rfind(')');
  for (int field = 2; field < 14 && at != std::string::npos; ++field) at = text.find(' ', at + 1);
  if (at == std::string::npos) return 0;
  char* rest = nullptr;
  const int64_t user = std::strtoll(text.c_str() + at, &rest, 10);
  const int64_t system = std::strtoll(rest, nullptr, 10);
  return (user + system) * (base::kNsPerSecond / ::sysconf(_SC_CLK_TCK));
}

}  // namespace trireme::tune
