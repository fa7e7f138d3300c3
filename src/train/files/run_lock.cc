// Allows only one process at a time to train in a run directory: locks the directory itself, so that no file
// is left behind.
#include "train/files/run_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <thread>

#include "base/error.h"

namespace trireme::train {

RunLock::RunLock(const std::string& directory, std::chrono::milliseconds patience) {
  constexpr std::chrono::milliseconds kPause(20);
  std::filesystem::create_directories(directory);
  fd_ = ::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd_ < 0) return;  // the first file that is written will report the error
  for (std::chrono::milliseconds waited(0); ::flock(fd_, LOCK_EX | LOCK_NB) != 0; waited += kPause) {
    if (errno == EINTR) continue;
    if (errno != EWOULDBLOCK) return;
    if (waited >= patience) {
      ::close(fd_);
      base::fail(base::ErrorCode::unavailable, "another process trains in '", directory,
                 "': end it first, or give another run.name or run.directory");
    }
    std::this_thread::sleep_for(kPause);
  }
}

RunLock::~RunLock() {
  if (fd_ >= 0) ::close(fd_);
}

}  // namespace trireme::train
