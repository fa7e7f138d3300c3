// A notice that this machine is about to be taken away, as clouds give it: a file that appears, or a command.
#pragma once

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

namespace trireme::batch {

/// Looks every few seconds, on a thread of its own, so that a command that hangs holds nobody up.
class StopNotice {
 public:
  /// A path, or `!COMMAND` for the shell, whose success is the notice; empty: there is none.
  explicit StopNotice(std::string source);
  ~StopNotice();
  StopNotice(const StopNotice&) = delete;
  StopNotice& operator=(const StopNotice&) = delete;

  bool has_come() const { return has_come_; }

 private:
  void watch();

  std::string source_;
  std::atomic<bool> has_come_{false};
  std::mutex mutex_;
  std::condition_variable ending_;
  bool ends_ = false;
  std::thread thread_;
};

}  // namespace trireme::batch
