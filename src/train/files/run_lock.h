// One process at a time trains in a run directory.
#pragma once

#include <chrono>
#include <string>

namespace trireme::train {

/// Held by the first rank while a run lives; the system lets go of it when the process ends, however it ends.
class RunLock {
 public:
  /// Makes the directory. Waits so long for a process that is just ending; then throws unavailable. File
  /// systems without locks are used without.
  explicit RunLock(const std::string& directory,
                   std::chrono::milliseconds patience = std::chrono::milliseconds(2000));
  ~RunLock();
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

 private:
  int fd_ = -1;
};

}  // namespace trireme::train
