// What tests of batch jobs share: scratch directories and errors as texts.
#pragma once

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <string_view>

#include "base/error.h"

namespace trireme::batch {

/// A fresh directory for one test.
inline std::string fresh(const std::string& name) {
  const std::string path =
      base::concat(std::filesystem::temp_directory_path().string(), "/batch_", ::getpid(), "_", name);
  std::filesystem::remove_all(path);
  std::filesystem::create_directories(path);
  return path;
}

/// Writes a file without waiting for the disk: for tests that write thousands.
inline void overwrite(const std::string& path, std::string_view bytes) {
  std::filesystem::remove(path);  // some file systems flush a file that is cut and written again
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

inline std::string error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const base::Error& e) {
    return e.message();
  }
  return "no error";
}

}  // namespace trireme::batch
