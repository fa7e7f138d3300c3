// A file that grows line by line and survives the end of the process at any moment.
#pragma once

#include <string>
#include <string_view>

namespace trireme::train {

/// Each append is one system call: what was appended is there even if the process is killed next. Full disks
/// do not end a run for the sake of its log: a failed append is told once by error().
class AppendFile {
 public:
  /// Opens or creates. Throws unavailable if that cannot be done.
  explicit AppendFile(const std::string& path);
  ~AppendFile();
  AppendFile(const AppendFile&) = delete;
  AppendFile& operator=(const AppendFile&) = delete;

  void append(std::string_view bytes);
  /// The first failure since the last call of error(), in words; empty if there was none.
  std::string error();
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  int fd_ = -1;
  bool told_ = false;
  std::string error_;
};

}  // namespace trireme::train
