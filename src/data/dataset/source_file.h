// The bytes of a data file: mapped as they are, or unpacked into memory when the file is gzip.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::data {

/// Bytes and who keeps them alive. Copying shares them.
struct SourceFile {
  std::string path;
  std::string_view bytes;  ///< unpacked
  std::shared_ptr<const void> owner;
  int64_t file_bytes = 0;  ///< on disk
  bool was_gzip = false;
};

inline constexpr int64_t kMaxUnpackedBytes = int64_t{16} << 30;

/// Maps a file; one that starts with gzip's two bytes is unpacked once, into memory, up to `limit_bytes`
/// (gzip has no random access). Throws not_found, exhausted past the limit, invalid_argument for damage.
SourceFile open_source(const std::string& path, int64_t limit_bytes = kMaxUnpackedBytes);

/// Unpacks gzip data of one or several members. Throws as open_source does.
std::string gunzip(std::string_view packed, int64_t limit_bytes = kMaxUnpackedBytes);

/// `path` without directories.
std::string base_name(const std::string& path);

/// `path` without ".gz".
std::string_view without_gz(std::string_view path);

/// Names inside a directory, sorted bytewise. Throws not_found.
std::vector<std::string> list_directory(const std::string& path);

bool is_directory(const std::string& path);

}  // namespace trireme::data
