// Local files: reads at offsets, new files by rename, directories in bytewise order.
#include "data/store/local_store.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "base/error.h"
#include "base/files/directory.h"
#include "base/files/file.h"

namespace trireme::data {
namespace {

namespace fs = std::filesystem;
using base::ErrorCode;

std::string plain(const std::string& path) {
  constexpr std::string_view kScheme = "file://";
  return path.starts_with(kScheme) ? path.substr(kScheme.size()) : path;
}

[[noreturn]] void fail_errno(std::string_view action, const std::string& path, int code) {
  const bool absent = code == ENOENT || code == ENOTDIR;
  base::fail(absent ? ErrorCode::not_found : ErrorCode::unavailable, "cannot ", action, " '", path,
             "': ", std::strerror(code));
}

class LocalFile : public StoreFile {
 public:
  explicit LocalFile(const std::string& path) : path_(path) {
    // O_NONBLOCK: opening a pipe would otherwise block; it is refused below.
    fd_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd_ < 0) fail_errno("open", path, errno);
    struct stat info {};
    const int failed = ::fstat(fd_, &info);
    if (failed != 0 || !S_ISREG(info.st_mode)) {
      ::close(fd_);
      base::fail_invalid("not a regular file: '", path, "'");
    }
    size_ = info.st_size;
  }
  ~LocalFile() override { ::close(fd_); }
  LocalFile(const LocalFile&) = delete;
  LocalFile& operator=(const LocalFile&) = delete;

  int64_t size() const override { return size_; }
  int64_t block_bytes() const override { return int64_t{256} << 10; }
  void read(int64_t offset, std::span<std::byte> out) const override {
    base::require(offset >= 0 && offset <= size_ && static_cast<int64_t>(out.size()) <= size_ - offset,
                  "read past the end of '", path_, "': byte ", offset, ", ", out.size(), " bytes, size ",
                  size_);
    while (!out.empty()) {
      const ssize_t got = ::pread(fd_, out.data(), out.size(), offset);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) fail_errno("read", path_, errno);
      base::require(got > 0, "file became shorter while it was read: '", path_, "', byte ", offset);
      out = out.subspan(static_cast<size_t>(got));
      offset += got;
    }
  }

 private:
  std::string path_;
  int fd_ = -1;
  int64_t size_ = 0;
};

class LocalWriter : public StoreWriter {
 public:
  explicit LocalWriter(const std::string& path) : file_(path) {}
  void write(std::string_view bytes) override { file_.write(bytes); }
  int64_t written_bytes() const override { return file_.written_bytes(); }
  void commit() override { file_.commit(); }

 private:
  base::AtomicFile file_;
};

class LocalStore : public Store {
 public:
  std::shared_ptr<const StoreFile> open(const std::string& path) const override {
    return std::make_shared<LocalFile>(plain(path));
  }

  std::unique_ptr<StoreWriter> create(const std::string& path) const override {
    const fs::path parent = fs::path(plain(path)).parent_path();
    std::error_code error;
    if (!parent.empty()) fs::create_directories(parent, error);
    if (error) fail_errno("create directory", parent.string(), error.value());
    return std::make_unique<LocalWriter>(plain(path));
  }

  std::vector<StoreEntry> list(const std::string& directory) const override {
    const std::string root = plain(directory);
    std::error_code error;
    std::vector<StoreEntry> entries;
    for (const std::string& name : base::names_in(root, error)) {
      struct stat info {};
      const std::string inner = (fs::path(root) / name).string();
      if (::stat(inner.c_str(), &info) != 0) continue;  // deleted meanwhile, or a broken link
      const bool is_file = S_ISREG(info.st_mode), is_folder = S_ISDIR(info.st_mode);
      if (!is_file && !is_folder) continue;
      entries.push_back(
          {(fs::path(directory) / name).string(), is_file ? int64_t{info.st_size} : 0, is_folder});
    }
    if (error) fail_errno("list", root, error.value());
    return entries;
  }

  bool exists(const std::string& path) const override { return base::file_exists(plain(path)); }
  bool is_directory(const std::string& path) const override {
    std::error_code error;
    return fs::is_directory(plain(path), error);
  }
  void remove(const std::string& path) const override {
    if (::unlink(plain(path).c_str()) != 0 && errno != ENOENT) fail_errno("remove", path, errno);
  }
  bool is_local() const override { return true; }
};

}  // namespace

std::shared_ptr<const Store> make_local_store() { return std::make_shared<LocalStore>(); }

}  // namespace trireme::data
