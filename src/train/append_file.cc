// Appending to logs: one write call a line.
#include "train/append_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error.h"

namespace trireme::train {

AppendFile::AppendFile(const std::string& path)
    : path_(path), fd_(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666)) {
  if (fd_ >= 0) return;
  base::fail(base::ErrorCode::unavailable, "cannot open '", path, "': ", std::strerror(errno));
}

AppendFile::~AppendFile() { ::close(fd_); }

void AppendFile::append(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t put = ::write(fd_, bytes.data(), bytes.size());
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) {
      if (!std::exchange(told_, true))
        error_ = base::concat("cannot write '", path_, "': ", std::strerror(errno));
      return;
    }
    bytes.remove_prefix(static_cast<size_t>(put));
  }
}

std::string AppendFile::error() { return std::exchange(error_, {}); }

}  // namespace trireme::train
