// Temporary directories, for files that a process needs only while it runs.
#include "base/files/scratch.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "base/files/directory.h"
#include "base/error.h"

namespace trireme::base {
namespace {

namespace fs = std::filesystem;

/// Holds a directory open and can lock it; the system releases the lock when the process ends.
class Lock {
 public:
  explicit Lock(const std::string& path)
      : fd_(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)) {}
  ~Lock() {
    if (fd_ >= 0) ::close(fd_);
  }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

  bool take() const { return fd_ >= 0 && ::flock(fd_, LOCK_EX | LOCK_NB) == 0; }
  bool is_ours() const {
    struct stat info {};
    return fd_ >= 0 && ::fstat(fd_, &info) == 0 && info.st_uid == ::geteuid();
  }

 private:
  int fd_;
};

struct Scratch {
  explicit Scratch(std::string at) : path(std::move(at)), lock(path) {}
  ~Scratch() {
    std::error_code error;  // ignored: a destructor cannot report it
    fs::remove_all(path, error);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  const std::string path;
  const Lock lock;
};

}  // namespace

std::shared_ptr<const std::string> make_scratch(const std::string& prefix) {
  std::string path = (fs::temp_directory_path() / (prefix + "XXXXXX")).string();
  if (::mkdtemp(path.data()) == nullptr)
    fail(ErrorCode::unavailable, "cannot make a temporary directory at ", path, ": ", std::strerror(errno));
  const auto scratch = std::make_shared<const Scratch>(std::move(path));
  // Between creation and lock, another process that removes stale directories may have locked or removed it.
  if (!scratch->lock.take())
    fail(ErrorCode::unavailable, "the temporary directory ", scratch->path, " cannot be locked");
  return {scratch, &scratch->path};
}

int remove_stale_scratch(const std::string& prefix) {
  int removed = 0;
  std::error_code error;
  const fs::path root = fs::temp_directory_path(error);
  if (error) return 0;
  for (const std::string& name : names_in(root.string(), error)) {
    if (name.rfind(prefix, 0) != 0 || name.size() != prefix.size() + 6) continue;
    const std::string path = (root / name).string();
    const Lock lock(path);
    if (!lock.is_ours() || !lock.take()) continue;
    std::error_code kept;
    fs::remove_all(path, kept);
    removed += !kept;
  }
  return removed;
}

}  // namespace trireme::base
