// What the state of a job asks of a file system: errors in words, open files, and locks that end with a
// process.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace trireme::batch {

/// Throws for errno: exhausted where the disk is full, not_found, else unavailable.
[[noreturn]] void fail_errno(std::string_view action, const std::string& path);

/// An open file. Its lock belongs to this opening of the file (an OFD lock): threads of one process exclude
/// each other by it too, and the system lets go of it however the process ends. Works over NFS from
/// version 4.
class PosixFile {
 public:
  /// `flags` as of open(2), O_CLOEXEC is added. Throws.
  PosixFile(std::string path, int flags);
  ~PosixFile();
  PosixFile(const PosixFile&) = delete;
  PosixFile& operator=(const PosixFile&) = delete;
  PosixFile(PosixFile&& other) noexcept;

  int64_t size() const;
  /// At most `bytes` from `offset` on.
  std::string read(int64_t offset, int64_t bytes) const;
  /// Throws exhausted where the disk is full; a part may then be written.
  void write(int64_t offset, std::string_view bytes);
  void truncate(int64_t bytes);
  /// The content and its length are on the disk.
  void sync();

  enum class Lock { exclusive, shared };
  /// False where another opening holds it. A shared one needs a file that may be read alone, the other one
  /// that may be written. Throws unsupported where the file system has no locks.
  bool try_lock(Lock kind = Lock::exclusive);
  void unlock();
  /// Whether anybody else holds the lock; does not take it.
  bool is_locked() const;
  /// The path was moved: errors name it from now on.
  void set_path(std::string path) { path_ = std::move(path); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  int fd_ = -1;
};

/// Makes the names inside a directory durable; file systems that cannot are left as they are.
void sync_directory(const std::string& path);
/// Makes a directory and those above it.
void make_directories(const std::string& path);
/// Atomic; replaces a file.
void rename_file(const std::string& from, const std::string& to);
/// Does nothing where there is none.
void remove_file(const std::string& path);
/// Makes this machine ask again which names a directory has: the client of a network file system remembers
/// for a while that a file was not there, until it changes the directory itself. Makes and removes the file
/// `name`, which nobody else uses meanwhile.
void forget_absent_names(const std::string& directory, const std::string& name);

}  // namespace trireme::batch
