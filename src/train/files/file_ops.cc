// File operations for checkpoints: POSIX calls whose errors become messages.
#include "train/files/file_ops.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "base/error.h"

namespace trireme::train {
namespace {

[[noreturn]] void fail_errno(std::string_view action, const std::string& path) {
  const int code = errno;
  const bool full = code == ENOSPC || code == EDQUOT || code == EFBIG;
  base::fail(full ? base::ErrorCode::exhausted : base::ErrorCode::unavailable, "cannot ", action, " '", path,
             "': ", std::strerror(code));
}

class PosixOutput : public OutputFile {
 public:
  explicit PosixOutput(const std::string& path)
      : path_(path), fd_(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666)) {
    if (fd_ < 0) fail_errno("create", path_);
  }
  ~PosixOutput() override { ::close(fd_); }
  PosixOutput(const PosixOutput&) = delete;
  PosixOutput& operator=(const PosixOutput&) = delete;

  void write(std::span<const std::byte> bytes) override {
    while (!bytes.empty()) {
      const ssize_t put = ::write(fd_, bytes.data(), bytes.size());
      if (put < 0 && errno == EINTR) continue;
      if (put < 0) fail_errno("write", path_);
      bytes = bytes.subspan(static_cast<size_t>(put));
    }
  }
  void sync() override {
    if (::fsync(fd_) != 0) fail_errno("flush", path_);
  }

 private:
  std::string path_;
  int fd_;
};

}  // namespace

std::unique_ptr<OutputFile> PosixFiles::create(const std::string& path) {
  return std::make_unique<PosixOutput>(path);
}

void PosixFiles::make_directory(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) {
    errno = error.value();
    fail_errno("create the directory", path);
  }
}

void PosixFiles::sync_directory(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) fail_errno("open", path);
  // Some file systems report that they cannot flush a directory; names are then as durable as they can be.
  const bool failed = ::fsync(fd) != 0 && errno != EINVAL && errno != ENOTSUP;
  const int code = errno;
  ::close(fd);
  errno = code;
  if (failed) fail_errno("flush", path);
}

void PosixFiles::rename(const std::string& from, const std::string& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) fail_errno("rename to", to);
}

bool PosixFiles::exchange(const std::string& a, const std::string& b) {
  if (::renameat2(AT_FDCWD, a.c_str(), AT_FDCWD, b.c_str(), RENAME_EXCHANGE) == 0) return true;
  if (errno == EINVAL || errno == ENOSYS) return false;
  fail_errno("exchange", b);
}

void PosixFiles::remove_tree(const std::string& path) {
  std::error_code error;
  std::filesystem::remove_all(path, error);
  if (error) {
    errno = error.value();
    fail_errno("remove", path);
  }
}

int64_t PosixFiles::free_bytes(const std::string& path) {
  struct statvfs info {};
  if (::statvfs(path.c_str(), &info) != 0) return -1;
  return static_cast<int64_t>(info.f_bavail) * static_cast<int64_t>(info.f_frsize);
}

}  // namespace trireme::train
