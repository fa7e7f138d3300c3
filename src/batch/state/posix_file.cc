// Files and locks by POSIX calls, with errors in words.
#include "batch/state/posix_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <utility>

#include "base/error.h"

namespace trireme::batch {

void fail_errno(std::string_view action, const std::string& path) {
  const int code = errno;
  const bool full = code == ENOSPC || code == EDQUOT || code == EFBIG;
  const bool missing = code == ENOENT || code == ENOTDIR;
  base::fail(full      ? base::ErrorCode::exhausted
             : missing ? base::ErrorCode::not_found
                       : base::ErrorCode::unavailable,
             "cannot ", action, " '", path, "': ", std::strerror(code));
}

PosixFile::PosixFile(std::string path, int flags)
    : path_(std::move(path)), fd_(::open(path_.c_str(), flags | O_CLOEXEC, 0666)) {
  if (fd_ < 0) fail_errno("open", path_);
}

PosixFile::~PosixFile() {
  if (fd_ >= 0) ::close(fd_);
}

PosixFile::PosixFile(PosixFile&& other) noexcept
    : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)) {}

int64_t PosixFile::size() const {
  struct stat info {};
  if (::fstat(fd_, &info) != 0) fail_errno("inspect", path_);
  return info.st_size;
}

std::string PosixFile::read(int64_t offset, int64_t bytes) const {
  std::string out(static_cast<size_t>(bytes), '\0');
  size_t got = 0;
  while (got < out.size()) {
    const ssize_t n = ::pread(fd_, out.data() + got, out.size() - got, offset + static_cast<int64_t>(got));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail_errno("read", path_);
    if (n == 0) break;
    got += static_cast<size_t>(n);
  }
  out.resize(got);
  return out;
}

void PosixFile::write(int64_t offset, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t put = ::pwrite(fd_, bytes.data(), bytes.size(), offset);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) fail_errno("write", path_);
    bytes.remove_prefix(static_cast<size_t>(put));
    offset += put;
  }
}

void PosixFile::truncate(int64_t bytes) {
  if (::ftruncate(fd_, bytes) != 0) fail_errno("cut", path_);
}

void PosixFile::sync() {
  if (::fdatasync(fd_) != 0) fail_errno("flush", path_);
}

bool PosixFile::try_lock(Lock kind) {
  struct flock lock {};
  lock.l_type = kind == Lock::exclusive ? F_WRLCK : F_RDLCK;
  lock.l_whence = SEEK_SET;
  while (::fcntl(fd_, F_OFD_SETLK, &lock) != 0) {
    if (errno == EINTR) continue;
    if (errno == EAGAIN || errno == EACCES) return false;
    if (errno == ENOLCK || errno == EINVAL || errno == EOPNOTSUPP || errno == ENOSYS) {
      base::fail_unsupported("the file system of '", path_, "' has no locks (", std::strerror(errno),
                             "): give a state directory on one that has, with state: DIRECTORY");
    }
    fail_errno("lock", path_);
  }
  return true;
}

void PosixFile::unlock() {
  struct flock lock {};
  lock.l_type = F_UNLCK;
  lock.l_whence = SEEK_SET;
  (void)::fcntl(fd_, F_OFD_SETLK, &lock);  // cannot fail for a lock that is held
}

bool PosixFile::is_locked() const {
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  if (::fcntl(fd_, F_OFD_GETLK, &lock) != 0) fail_errno("inspect the lock of", path_);
  return lock.l_type != F_UNLCK;
}

void sync_directory(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) fail_errno("open", path);
  const bool failed = ::fsync(fd) != 0 && errno != EINVAL && errno != ENOTSUP;
  const int code = errno;
  ::close(fd);
  errno = code;
  if (failed) fail_errno("flush", path);
}

void make_directories(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (!error) return;
  errno = error.value();
  fail_errno("create the directory", path);
}

void rename_file(const std::string& from, const std::string& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) fail_errno("rename to", to);
}

void remove_file(const std::string& path) {
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) fail_errno("remove", path);
}

void forget_absent_names(const std::string& directory, const std::string& name) {
  const std::string path = directory + "/" + name;
  { const PosixFile made(path, O_RDWR | O_CREAT); }  // one that a killed process left does as well
  remove_file(path);
}

}  // namespace trireme::batch
