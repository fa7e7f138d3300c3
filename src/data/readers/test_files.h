// Small data files written by tests, in a directory of their own that goes away with them.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

namespace trireme::data {

/// A directory that lives as long as this.
class TestDirectory {
 public:
  TestDirectory() {
    std::string name = (std::filesystem::temp_directory_path() / "trireme-data-XXXXXX").string();
    path_ = ::mkdtemp(name.data());
  }
  ~TestDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TestDirectory(const TestDirectory&) = delete;
  TestDirectory& operator=(const TestDirectory&) = delete;

  const std::string& path() const { return path_; }
  /// Writes a file, with the directories on its way; returns its path.
  std::string write(const std::string& name, std::string_view bytes) const {
    const std::filesystem::path file = std::filesystem::path(path_) / name;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    return file.string();
  }

 private:
  std::string path_;
};

/// Integers as bytes of either order.
template <class T>
std::string big_endian(T value) {
  std::string out;
  for (size_t i = sizeof(T); i-- > 0;) out.push_back(static_cast<char>(value >> (8 * i)));
  return out;
}
template <class T>
std::string little_endian(T value) {
  std::string out;
  for (size_t i = 0; i < sizeof(T); ++i) out.push_back(static_cast<char>(value >> (8 * i)));
  return out;
}

}  // namespace trireme::data
