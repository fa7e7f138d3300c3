// Appends to log files: collects lines, then writes them in one call.
#include "train/files/append_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error.h"

namespace trireme::train {

constexpr size_t kMostWaiting = 64 << 10;

AppendFile::AppendFile(const std::string& path)
    : path_(path), fd_(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666)) {
  if (fd_ >= 0) return;
  base::fail(base::ErrorCode::unavailable, "cannot open '", path, "': ", std::strerror(errno));
}

AppendFile::~AppendFile() {
  flush();
  ::close(fd_);
}

void AppendFile::append(std::string_view bytes) {
  waiting_ += bytes;
  if (waiting_.size() > kMostWaiting) flush();
}

void AppendFile::flush() {
  std::string_view bytes = waiting_;
  while (!bytes.empty()) {
    const ssize_t put = ::write(fd_, bytes.data(), bytes.size());
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) {
      if (!std::exchange(told_, true)) {
        error_ = base::concat("cannot write '", path_, "': ", std::strerror(errno));
      }
      break;
    }
    bytes.remove_prefix(static_cast<size_t>(put));
  }
  waiting_.clear();
}

std::string AppendFile::error() { return std::exchange(error_, {}); }

}  // namespace trireme::train
