// Reads the small files of a model's directory: its configuration, labels, states and warm-up data.
#pragma once

#include <filesystem>
#include <string>

#include "base/error.h"
#include "base/files/file.h"

namespace trireme::serve {

/// The bytes of a file. Throws invalid_argument for a pipe or a device, which could keep its reader for ever;
/// else as base::read_file.
inline std::string read_regular_file(const std::string& path, size_t limit_bytes) {
  std::error_code none;  // of a file that is not there, read_file tells
  base::require(!std::filesystem::is_other(path, none), "not a regular file: '", path, "'");
  return base::read_file(path, limit_bytes);
}

}  // namespace trireme::serve
