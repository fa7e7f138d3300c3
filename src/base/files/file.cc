// Files: maps, reads, atomic writes, and path checks on top of POSIX calls.
#include "base/files/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <utility>

#include "base/error.h"

namespace trireme::base {
namespace {

[[noreturn]] void fail_errno(std::string_view action, const std::string& path, int code) {
  const ErrorCode kind = code == ENOENT || code == ENOTDIR                   ? ErrorCode::not_found
                         : code == ENOSPC || code == EDQUOT || code == EFBIG ? ErrorCode::exhausted
                         : code == EISDIR || code == ENAMETOOLONG            ? ErrorCode::invalid_argument
                                                                             : ErrorCode::unavailable;
  fail(kind, "cannot ", action, " '", path, "': ", std::strerror(code));
}

/// An open descriptor that closes itself.
struct Descriptor {
  explicit Descriptor(int opened) : fd(opened) {}
  ~Descriptor() {
    if (fd >= 0) ::close(fd);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int fd;
};

int open_for_read(const std::string& path, int flags = 0) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | flags);
  if (fd < 0) fail_errno("open", path, errno);
  return fd;
}

size_t regular_size(int fd, const std::string& path) {
  struct stat info {};
  if (::fstat(fd, &info) != 0) fail_errno("inspect", path, errno);
  require(S_ISREG(info.st_mode), "not a regular file: '", path, "'");
  return static_cast<size_t>(info.st_size);
}

std::string directory_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

bool starts_with_path(const std::filesystem::path& path, const std::filesystem::path& root) {
  return std::mismatch(root.begin(), root.end(), path.begin(), path.end()).first == root.end();
}

/// Hugging Face's cache stores <model>/snapshots/<revision>/… as links into <model>/blobs. Returns that blobs
/// directory for a path within a snapshot, and an empty path for any other directory.
std::filesystem::path blobs_of(const std::filesystem::path& directory) {
  std::error_code none;
  for (std::filesystem::path at = directory; at != at.root_path(); at = at.parent_path()) {
    if (at.parent_path().filename() != "snapshots") continue;
    const std::filesystem::path blobs = at.parent_path().parent_path() / "blobs";
    if (std::filesystem::is_directory(blobs, none)) return std::filesystem::canonical(blobs, none);
  }
  return {};
}

}  // namespace

MappedFile::MappedFile(const std::string& path) : path_(path) {
  // O_NONBLOCK: opening a pipe would otherwise block until it has a writer; regular_size() refuses it below.
  const Descriptor file(open_for_read(path, O_NONBLOCK));
  size_ = regular_size(file.fd, path);
  if (size_ == 0) return;  // mmap rejects an empty mapping; an empty file is valid here
  void* data = ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, file.fd, 0);
  if (data == MAP_FAILED) fail_errno("map", path, errno);
  data_ = static_cast<const std::byte*>(data);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, size_t{0})) {}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

void MappedFile::release_pages() const {
  // The call is only advice: if the kernel declines it, the pages stay resident.
  if (data_ != nullptr) (void)::madvise(const_cast<std::byte*>(data_), size_, MADV_DONTNEED);
}

void MappedFile::release_pages(std::span<const std::byte> part) const {
  const std::less_equal<const std::byte*> before;
  if (part.empty() || !before(data_, part.data()) || !before(part.data() + part.size(), data_ + size_))
    return;
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  const auto begin = (static_cast<size_t>(part.data() - data_) + page - 1) / page * page;
  const auto end = (static_cast<size_t>(part.data() - data_) + part.size()) / page * page;
  if (begin < end) (void)::madvise(const_cast<std::byte*>(data_) + begin, end - begin, MADV_DONTNEED);
}

std::string read_file(const std::string& path, size_t limit_bytes) {
  const Descriptor file(open_for_read(path));
  struct stat info {};
  if (::fstat(file.fd, &info) != 0) fail_errno("inspect", path, errno);
  const auto refuse = [&] {
    fail(ErrorCode::exhausted, "file is too large: '", path, "', limit ", limit_bytes, " bytes");
  };
  if (info.st_size > 0 && static_cast<size_t>(info.st_size) > limit_bytes) refuse();
  // Pipes and /proc files report no size, so the file is read to its end whatever size it reports.
  std::string bytes;
  size_t used = 0;
  bytes.resize(static_cast<size_t>(std::max<off_t>(info.st_size, 0)) + 1);
  while (true) {
    if (used == bytes.size()) bytes.resize(used + std::max<size_t>(used / 2, 4096));
    const ssize_t got = ::read(file.fd, bytes.data() + used, bytes.size() - used);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail_errno("read", path, errno);
    if (got == 0) break;
    used += static_cast<size_t>(got);
    if (used > limit_bytes) refuse();
  }
  bytes.resize(used);
  return bytes;
}

AtomicFile::AtomicFile(std::string path) : path_(std::move(path)) {
  // mkstemp would create a private file (0600), while the result must be as readable as the umask permits.
  for (int n = 0; fd_ < 0; ++n) {
    temporary_ = concat(path_, ".tmp.", ::getpid(), ".", n);
    fd_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd_ < 0 && errno != EEXIST) fail_errno("create", path_, errno);
  }
}

AtomicFile::~AtomicFile() {
  if (fd_ < 0) return;
  ::close(fd_);
  ::unlink(temporary_.c_str());
}

void AtomicFile::write(std::string_view bytes) {
  check(fd_ >= 0, "write after commit: '", path_, "'");
  while (!bytes.empty()) {
    const ssize_t put = ::write(fd_, bytes.data(), bytes.size());
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) fail_errno("write", path_, errno);
    bytes.remove_prefix(static_cast<size_t>(put));
    written_bytes_ += put;
  }
}

void AtomicFile::commit() {
  check(fd_ >= 0, "commit called twice: '", path_, "'");
  if (::fsync(fd_) != 0) fail_errno("flush", path_, errno);
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) fail_errno("rename to", path_, errno);
  ::close(std::exchange(fd_, -1));
  const Descriptor directory(::open(directory_of(path_).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  // Some file systems cannot flush a directory; the rename itself has already happened.
  if (directory.fd >= 0) (void)::fsync(directory.fd);
}

void write_file_atomic(const std::string& path, std::string_view bytes) {
  AtomicFile file(path);
  file.write(bytes);
  file.commit();
}

bool file_exists(const std::string& path) { return ::access(path.c_str(), F_OK) == 0; }

std::string safe_join(const std::string& root, std::string_view relative) {
  namespace fs = std::filesystem;
  require(!relative.empty(), "path is empty");
  require(relative.find('\0') == std::string_view::npos, "path holds a NUL byte");
  const fs::path inner(relative);
  require(inner.is_relative(), "path must be relative: '", relative, "'");
  for (const fs::path& part : inner) require(part != "..", "path must not contain '..': '", relative, "'");
  std::error_code error;
  const fs::path base = fs::canonical(root, error);
  if (error) fail(ErrorCode::not_found, "no such directory: '", root, "'");
  // This follows every link that exists; a part of the path that does not exist yet cannot be a link.
  const fs::path resolved = fs::weakly_canonical(base / inner, error);
  require(!error, "path cannot be resolved: '", relative, "'");
  if (!starts_with_path(resolved, base)) {
    const fs::path blobs = blobs_of(base);
    require(!blobs.empty() && starts_with_path(resolved, blobs), "path leaves its directory: '", relative,
            "'");
  }
  return (fs::path(root) / inner).string();
}

}  // namespace trireme::base
