// A file that grows line by line; what was flushed survives the end of the process at any moment.
#pragma once

#include <string>
#include <string_view>

namespace trireme::train {

/// Appends gather in memory; flush() is one system call. Full disks do not end a run for the sake of its log:
/// a failure is told once by error().
class AppendFile {
 public:
  /// Opens or creates. Throws unavailable if that cannot be done.
  explicit AppendFile(const std::string& path);
  ~AppendFile();
  AppendFile(const AppendFile&) = delete;
  AppendFile& operator=(const AppendFile&) = delete;

  void append(std::string_view bytes);
  void flush();
  /// The first failure since the last call of error(), in words; empty if there was none.
  std::string error();
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  int fd_ = -1;
  bool told_ = false;
  std::string error_;
  std::string waiting_;
};

}  // namespace trireme::train
