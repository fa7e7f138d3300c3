// Pages of keys and values as files of one directory: each with a checksum, whole or not there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/pages/page_names.h"

namespace trireme::engine {

/// The head of a page's file, whose content follows it.
inline constexpr size_t kPageHeadBytes = 64;
std::array<std::byte, kPageHeadBytes> page_head(const PageId& id, std::span<const std::byte> content);
/// The content of a file's bytes; empty where they are not the whole page `id`, as it was written.
std::span<const std::byte> page_content(std::span<const std::byte> file, const PageId& id);

/// Layout: <directory>/XX/ID.page by the first two digits of the id, beside `lock`, and `key`, under which
/// ids are made. A file is written beside its place and renamed: a process that is killed leaves whole pages
/// and files that the next one removes. They are not flushed: what a power cut leaves of a page has another
/// checksum. Names that are not its own are left alone. One thread at a time.
class PageFiles {
 public:
  /// Makes the directory for its owner alone; one that exists keeps its permissions, and is refused where
  /// others may write into it. Throws unavailable where another process uses it, or it cannot be used.
  explicit PageFiles(std::string directory);
  ~PageFiles();
  PageFiles(const PageFiles&) = delete;
  PageFiles& operator=(const PageFiles&) = delete;

  const base::KeyedHash::Key& key() const { return key_; }

  struct Found {
    PageId id;
    int64_t bytes = 0;    ///< of the file
    int64_t used_ns = 0;  ///< since 1970
  };
  /// Pages that earlier processes left, the least recently used first; at most `most`, others are removed.
  std::vector<Found> scan(size_t most);

  enum class Reading : uint8_t { good, missing, broken };
  /// Fills `to` with the page's content and marks it as used. Broken: the file is not that page, whole.
  Reading read(const PageId& id, std::span<std::byte> to) const;
  /// Throws exhausted where the disk is full, else unavailable; then nothing stays.
  void write(const PageId& id, std::span<const std::byte> content) const;
  /// Does nothing where there is none.
  void remove(const PageId& id) const;

 private:
  std::string path_of(const PageId& id) const;
  void open_directory() const;
  void read_key();

  const std::string directory_;
  int lock_ = -1;
  base::KeyedHash::Key key_{};
};

}  // namespace trireme::engine
