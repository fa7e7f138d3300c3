// Stores pages of keys and values as files in a directory.
#include "engine/pages/page_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <optional>
#include <utility>

#include "base/crc32c.h"
#include "base/error.h"
#include "base/files/directory.h"

namespace trireme::engine {
namespace {

constexpr char kMagic[] = "TRIKV01\n";  // 8 bytes; other formats have other ones
constexpr const char* kEnding = ".page";
constexpr const char* kUnfinished = ".page.new";

/// At offsets 0, 8, 24, 32 and 36 of a file, in native byte order; zeros fill the rest of the head.
struct Head {
  char magic[8];
  PageId id;
  uint64_t content_bytes;
  uint32_t content_crc;
  uint32_t head_crc;  // of the fields before it
  char rest[kPageHeadBytes - 40];
};
static_assert(sizeof(Head) == kPageHeadBytes);

uint32_t crc_of(const Head& head) {
  return base::crc32c(std::as_bytes(std::span(&head, 1)).first(offsetof(Head, head_crc)));
}

bool is_head_of(const Head& head, const PageId& id, uint64_t content_bytes) {
  constexpr char kNothing[sizeof head.rest] = {};
  return std::memcmp(head.magic, kMagic, sizeof head.magic) == 0 && head.id == id &&
         head.content_bytes == content_bytes && head.head_crc == crc_of(head) &&
         std::memcmp(head.rest, kNothing, sizeof kNothing) == 0;
}

[[noreturn]] void fail_errno(std::string_view action, const std::string& path) {
  const int error = errno;
  const auto code =
      error == ENOSPC || error == EDQUOT ? base::ErrorCode::exhausted : base::ErrorCode::unavailable;
  base::fail(code, "cannot ", action, " '", path, "': ", std::strerror(error));
}

/// A file descriptor that is closed by the destructor.
struct Open {
  int fd;
  ~Open() {
    if (fd >= 0) ::close(fd);
  }
};

bool read_all(int fd, void* to, size_t bytes) {
  auto* at = static_cast<char*>(to);
  while (bytes > 0) {
    const ssize_t got = ::read(fd, at, bytes);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    at += got;
    bytes -= static_cast<size_t>(got);
  }
  return true;
}

void write_all(int fd, const void* from, size_t bytes, const std::string& path) {
  const auto* at = static_cast<const char*>(from);
  while (bytes > 0) {
    const ssize_t put = ::write(fd, at, bytes);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) fail_errno("write", path);
    at += put;
    bytes -= static_cast<size_t>(put);
  }
}

/// Nanosecond clock times: those that the kernel would set advance only every few milliseconds.
void mark_used(int fd) {
  std::array<timespec, 2> now{};
  ::clock_gettime(CLOCK_REALTIME, now.data());
  now[1] = now[0];
  static_cast<void>(::futimens(fd, now.data()));  // where that fails, the order is that of writing
}

int digit_of(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/// The id in a name of the form ID.page.
std::optional<PageId> id_of(std::string_view name, std::string_view ending) {
  constexpr size_t kDigits = 32;
  if (name.size() != kDigits + ending.size() || !name.ends_with(ending)) return std::nullopt;
  PageId id{};
  for (size_t i = 0; i < kDigits; ++i) {
    const int digit = digit_of(name[i]);
    if (digit < 0) return std::nullopt;
    id[i / 16] = id[i / 16] << 4 | static_cast<uint64_t>(digit);
  }
  return id;
}

bool is_folder(std::string_view name) {
  return name.size() == 2 && digit_of(name[0]) >= 0 && digit_of(name[1]) >= 0;
}

}  // namespace

std::array<std::byte, kPageHeadBytes> page_head(const PageId& id, std::span<const std::byte> content) {
  Head head{};
  std::memcpy(head.magic, kMagic, sizeof head.magic);
  head.id = id;
  head.content_bytes = content.size();
  head.content_crc = base::crc32c(content);
  head.head_crc = crc_of(head);
  std::array<std::byte, kPageHeadBytes> bytes;
  std::memcpy(bytes.data(), &head, sizeof head);
  return bytes;
}

std::span<const std::byte> page_content(std::span<const std::byte> file, const PageId& id) {
  if (file.size() < kPageHeadBytes) return {};
  Head head{};
  std::memcpy(&head, file.data(), sizeof head);
  const std::span<const std::byte> content = file.subspan(kPageHeadBytes);
  if (!is_head_of(head, id, content.size()) || head.content_crc != base::crc32c(content)) return {};
  return content;
}

/// Creates the directory with access for its owner only, since pages reveal what was said. An existing
/// directory keeps its permissions, as others may rely on them, but is refused if others may write to it:
/// they could then change the answers.
void PageFiles::open_directory() const {
  std::error_code error;
  const bool is_new = std::filesystem::create_directories(directory_, error);
  if (error) base::fail(base::ErrorCode::unavailable, "cannot make '", directory_, "': ", error.message());
  struct stat info {};
  if (is_new && ::chmod(directory_.c_str(), S_IRWXU) != 0) fail_errno("protect", directory_);
  if (::stat(directory_.c_str(), &info) != 0) fail_errno("look at", directory_);
  base::require((info.st_mode & (S_IWGRP | S_IWOTH)) == 0, "others may write into '", directory_,
                "', and whoever writes pages decides what answers say: name a directory that is its owner's "
                "alone");
}

PageFiles::PageFiles(std::string directory) : directory_(std::move(directory)) {
  open_directory();
  const std::string path = directory_ + "/lock";
  lock_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, S_IRUSR | S_IWUSR);
  if (lock_ < 0) fail_errno("open", path);
  struct flock whole {};
  whole.l_type = F_WRLCK;
  whole.l_whence = SEEK_SET;
  if (::fcntl(lock_, F_OFD_SETLK, &whole) != 0) {
    const bool is_taken = errno == EACCES || errno == EAGAIN;
    const Open closing{std::exchange(lock_, -1)};
    if (!is_taken) fail_errno("lock", path);
    base::fail(base::ErrorCode::unavailable, "another process keeps pages in '", directory_,
               "': each server needs a directory of its own");
  }
  try {
    read_key();
  } catch (const base::Error&) {
    ::close(lock_);
    throw;
  }
}

PageFiles::~PageFiles() { ::close(lock_); }

/// Reads the key of existing pages; makes a new one if there is no complete key.
void PageFiles::read_key() {
  const std::string path = directory_ + "/key";
  {
    const Open file{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW)};
    if (file.fd >= 0 && read_all(file.fd, key_.data(), sizeof key_)) return;
  }
  key_ = base::KeyedHash::random_key();
  const std::string beside = path + ".new";
  const Open file{
      ::open(beside.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, S_IRUSR | S_IWUSR)};
  if (file.fd < 0) fail_errno("create", beside);
  write_all(file.fd, key_.data(), sizeof key_, beside);
  if (::rename(beside.c_str(), path.c_str()) != 0) fail_errno("rename to", path);
}

std::string PageFiles::path_of(const PageId& id) const {
  const std::string name = to_text(id);
  return base::concat(directory_, "/", std::string_view(name).substr(0, 2), "/", name, kEnding);
}

std::vector<PageFiles::Found> PageFiles::scan(size_t most) {
  std::vector<Found> found;
  std::error_code error;
  for (const std::string& folder : base::names_in(directory_, error)) {
    if (!is_folder(folder)) continue;
    const std::string inside = directory_ + "/" + folder;
    for (const std::string& name : base::names_in(inside, error)) {
      const std::string path = inside + "/" + name;
      if (id_of(name, kUnfinished)) ::unlink(path.c_str());
      const std::optional<PageId> id = id_of(name, kEnding);
      struct stat info {};
      if (!id || path != path_of(*id) || ::lstat(path.c_str(), &info) != 0 || !S_ISREG(info.st_mode))
        continue;
      if (found.size() >= most) {
        ::unlink(path.c_str());
        continue;
      }
      constexpr int64_t kNs = 1'000'000'000;
      found.push_back({*id, info.st_size, info.st_mtim.tv_sec * kNs + info.st_mtim.tv_nsec});
    }
  }
  std::sort(found.begin(), found.end(), [](const Found& a, const Found& b) {
    return std::pair(a.used_ns, a.id) < std::pair(b.used_ns, b.id);
  });
  return found;
}

PageFiles::Reading PageFiles::read(const PageId& id, std::span<std::byte> to) const {
  const std::string path = path_of(id);
  // Nonblocking, so that a FIFO in place of the file cannot block the open.
  const Open file{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK)};
  if (file.fd < 0) return errno == ENOENT ? Reading::missing : Reading::broken;
  struct stat info {};
  Head head{};
  if (::fstat(file.fd, &info) != 0 || !S_ISREG(info.st_mode) ||
      info.st_size != static_cast<off_t>(kPageHeadBytes + to.size()) ||
      !read_all(file.fd, &head, sizeof head) || !is_head_of(head, id, to.size()) ||
      !read_all(file.fd, to.data(), to.size()) ||
      head.content_crc != base::crc32c(std::span<const std::byte>(to)))
    return Reading::broken;
  mark_used(file.fd);
  return Reading::good;
}

void PageFiles::write(const PageId& id, std::span<const std::byte> content) const {
  const std::string path = path_of(id), beside = base::concat(path.substr(0, path.size() - 5), kUnfinished);
  const std::string folder = path.substr(0, path.rfind('/'));
  if (::mkdir(folder.c_str(), S_IRWXU) != 0 && errno != EEXIST) fail_errno("make", folder);
  try {
    const Open file{
        ::open(beside.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, S_IRUSR | S_IWUSR)};
    if (file.fd < 0) fail_errno("create", beside);
    const auto head = page_head(id, content);
    write_all(file.fd, head.data(), head.size(), beside);
    write_all(file.fd, content.data(), content.size(), beside);
    mark_used(file.fd);
    if (::rename(beside.c_str(), path.c_str()) != 0) fail_errno("rename to", path);
  } catch (const base::Error&) {
    ::unlink(beside.c_str());
    throw;
  }
}

void PageFiles::remove(const PageId& id) const { ::unlink(path_of(id).c_str()); }

}  // namespace trireme::engine
