// Stores on disk, for later processes, results that take long to find on a GPU.
#include "backend/cuda/kept/plan_store.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "backend/cuda/kept/plan_file.h"
#include "base/error.h"
#include "base/files/directory.h"
#include "base/files/file.h"

namespace trireme::cuda {
namespace {

constexpr std::string_view kSuffix = ".plan";

std::string environment(const char* name) {
  const char* text = std::getenv(name);
  return text == nullptr ? std::string() : std::string(text);
}

/// A lock held by the process that writes into the directory.
class DirectoryLock {
 public:
  explicit DirectoryLock(const std::string& directory)
      : fd_(::open((directory + "/lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644)) {
    // A process that is suspended while it writes must not block all others forever.
    constexpr int kTries = 3000;
    for (int i = 0; fd_ >= 0 && i < kTries && !is_held_; ++i) {
      is_held_ = ::flock(fd_, LOCK_EX | LOCK_NB) == 0;
      if (!is_held_) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }
  ~DirectoryLock() {
    if (fd_ >= 0) ::close(fd_);
  }
  DirectoryLock(const DirectoryLock&) = delete;
  DirectoryLock& operator=(const DirectoryLock&) = delete;
  bool is_held() const { return is_held_; }

 private:
  int fd_;
  bool is_held_ = false;
};

/// A stored file, and when it was last used.
struct Kept {
  std::string path;
  int64_t bytes = 0;
  timespec used{};
};

/// Oldest first. Also removes partial files of killed processes, which is safe while the lock is held.
std::vector<Kept> kept_files(const std::string& directory) {
  std::vector<Kept> files;
  std::error_code ignored;
  for (const std::string& name : base::names_in(directory, ignored)) {
    const std::string path = base::concat(directory, "/", name);
    struct stat info {};
    if (name.find(base::concat(kSuffix, ".tmp.")) != std::string::npos) ::unlink(path.c_str());
    if (!name.ends_with(kSuffix) || ::lstat(path.c_str(), &info) != 0 || !S_ISREG(info.st_mode)) continue;
    files.push_back({path, info.st_size, info.st_mtim});
  }
  std::sort(files.begin(), files.end(), [](const Kept& a, const Kept& b) {
    return std::tie(a.used.tv_sec, a.used.tv_nsec, a.path) < std::tie(b.used.tv_sec, b.used.tv_nsec, b.path);
  });
  return files;
}

/// Writes a temporary file beside the path and renames it. The data is not synced: a file damaged by a power
/// cut fails its checksum. Returns false if it cannot be written.
bool write_whole(const std::string& path, std::string_view bytes) {
  const std::string temporary = base::concat(path, ".tmp.", ::getpid());
  const int fd = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) return false;
  bool is_written = true;
  while (!bytes.empty() && is_written) {
    const ssize_t put = ::write(fd, bytes.data(), bytes.size());
    is_written = put > 0 || (put < 0 && errno == EINTR);
    bytes.remove_prefix(static_cast<size_t>(std::max<ssize_t>(put, 0)));
  }
  is_written = ::close(fd) == 0 && is_written && ::rename(temporary.c_str(), path.c_str()) == 0;
  if (!is_written) ::unlink(temporary.c_str());
  return is_written;
}

}  // namespace

std::string cache_directory() {
  const std::string named = environment("TRIREME_CUDA_CACHE");
  if (!named.empty()) return named == "off" ? std::string() : named;
  // The XDG Base Directory Specification requires that relative paths be ignored.
  if (const std::string root = environment("XDG_CACHE_HOME"); root.starts_with('/')) return root + "/trireme";
  const std::string home = environment("HOME");
  return home.starts_with('/') ? home + "/.cache/trireme" : std::string();
}

std::string plans_directory() {
  const std::string root = cache_directory();
  return root.empty() ? root : root + "/plans";
}

int64_t cache_bytes() {
  constexpr int64_t kUsual = 256, kMost = int64_t{1} << 40;
  const int64_t asked = std::atoll(environment("TRIREME_CUDA_CACHE_MIB").c_str());
  return (asked > 0 ? std::min(asked, kMost) : kUsual) << 20;
}

PlanStore::PlanStore(std::string directory, int64_t most_bytes)
    : directory_(std::move(directory)), most_bytes_(most_bytes) {}

std::string PlanStore::path_of(const std::string& key) const {
  return base::concat(directory_, "/", digest_of(key), kSuffix);
}

void PlanStore::note(const std::string& path, std::string_view problem) const {
  notice_.with([&](Notice& notice) {
    if (notice.was_set) return;
    notice = {base::concat("'", path, "' ", problem, ": done without it"), true};
  });
}

std::string PlanStore::take_notice() const {
  return notice_.with([](Notice& notice) { return std::exchange(notice.text, {}); });
}

std::optional<std::string> PlanStore::find(const std::string& key) const {
  const std::string path = path_of(key);
  if (!base::file_exists(path)) return std::nullopt;
  try {
    const std::string file = base::read_file(path, kMostPlanBytes);
    const PlanFile read = read_plan_file(file, key);
    if (read.problem.empty()) return std::string(read.body);
    note(path, read.problem);
  } catch (const base::Error& e) {
    note(path, base::concat("cannot be read (", e.message(), ")"));
  }
  return std::nullopt;
}

/// The caller holds the lock of the directory.
void PlanStore::make_room(int64_t bytes) const {
  const std::vector<Kept> files = kept_files(directory_);
  int64_t all = bytes;
  for (const Kept& file : files) all += file.bytes;
  for (const Kept& file : files) {
    if (all <= most_bytes_) break;
    if (::unlink(file.path.c_str()) == 0) all -= file.bytes;
  }
}

/// Returns the plan that another process stored, unless it equals `refused`.
std::optional<std::string> PlanStore::publish(const std::string& key, const std::string& body,
                                              const std::optional<std::string>& refused) const {
  const std::string file = plan_file(key, body), path = path_of(key);
  const auto bytes = static_cast<int64_t>(file.size());
  if (gave_up_ || file.size() > kMostPlanBytes || bytes > most_bytes_) return std::nullopt;
  std::error_code ignored;
  std::filesystem::create_directories(directory_, ignored);
  const DirectoryLock lock(directory_);
  if (!lock.is_held()) {
    gave_up_ = true;
    note(directory_, "cannot be written");
    return std::nullopt;
  }
  if (std::optional<std::string> theirs = find(key); theirs && theirs != refused) return theirs;
  ::unlink(path.c_str());
  make_room(bytes);
  if (!write_whole(path, file)) note(path, "cannot be written");
  return std::nullopt;
}

void PlanStore::get(const std::string& key, const Takes& takes, const Make& make) const {
  if (directory_.empty()) return void(make());
  const std::optional<std::string> kept = find(key);
  if (kept && takes(*kept)) {
    ::utimensat(AT_FDCWD, path_of(key).c_str(), nullptr, 0);  // marks it as recently used
    return;
  }
  if (kept) note(path_of(key), "is refused by who it was kept for");
  const std::string made = make();
  if (made.empty()) return;
  if (const std::optional<std::string> theirs = publish(key, made, kept)) takes(*theirs);
}

std::shared_ptr<const PlanStore> plan_store_of(base::SharedCache& packs) {
  return packs.get<PlanStore>(
      "kept plans", [] { return std::make_shared<const PlanStore>(plans_directory(), cache_bytes()); });
}

}  // namespace trireme::cuda
