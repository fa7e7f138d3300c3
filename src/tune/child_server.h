// `trireme serve` as a process of its own, so that what is measured is what will run.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

namespace trireme::tune {

class ChildServer {
 public:
  /// Starts `program serve` on a free port of this machine, with further options in `more`, and waits until
  /// `model` is ready. What it logs goes to the file `log`. Throws unavailable with the reason it gave. Ends
  /// with this process, even if killed.
  ChildServer(const std::string& program, const std::string& repository, const std::string& model,
              const std::string& log, const std::vector<std::string>& more = {});
  /// Stops it: SIGTERM, and SIGKILL if it does not end within ten seconds.
  ~ChildServer();
  ChildServer(const ChildServer&) = delete;
  ChildServer& operator=(const ChildServer&) = delete;

  uint16_t port() const { return port_; }
  /// Most resident memory so far.
  int64_t peak_bytes() const;
  /// Processor time of all its threads so far.
  int64_t cpu_ns() const;

 private:
  void start(std::vector<std::string> words, const std::string& log);
  void wait_ready(const std::string& model, const std::string& log);
  bool is_running();

  pid_t pid_ = -1;
  uint16_t port_ = 0;
};

}  // namespace trireme::tune
