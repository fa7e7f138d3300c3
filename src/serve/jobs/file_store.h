// Files of the API's clients, and what else is kept of them, in one directory of the server.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/text/json.h"

namespace trireme::serve {

/// A file as the API shows it.
struct StoredFile {
  std::string id, name, purpose;
  int64_t bytes = 0, created_s = 0;
  std::string tenant;  ///< whose it is: nobody else sees it
  /// The API's object "file".
  base::Json json() const;
};

/// Layout: <directory>/ID.json beside <directory>/ID. A file is there when its JSON is, which comes last. Any
/// thread.
class FileStore {
 public:
  /// Makes the directory and removes what a server that was killed left there half-written. At most
  /// `most_bytes` are kept in all, those below the directory `beside` included, where somebody else writes.
  FileStore(std::string directory, std::string beside, int64_t most_bytes);

  /// Throws exhausted where the files would be too many or too large together, or the disk is full.
  StoredFile add(std::string name, std::string purpose, const std::string& tenant, std::string_view content,
                 int64_t now_s);
  /// Takes a file that lies in `beside`: it is moved, so no more is kept than before. `file` says all but its
  /// size; one of the same id is replaced.
  StoredFile adopt(const std::string& path, StoredFile file);
  /// False once as much is kept as may be.
  bool has_room() const;
  /// Throws not_found, also for a file of somebody else.
  StoredFile find(const std::string& id, const std::string& tenant) const;
  /// Newest first.
  std::vector<StoredFile> list(const std::string& tenant) const;
  void remove(const std::string& id, const std::string& tenant);
  /// Where the content of a file lies.
  std::string path_of(const std::string& id) const { return directory_ + "/" + id; }

 private:
  std::optional<StoredFile> read(const std::string& id) const;
  struct Kept {
    int64_t files = 0, bytes = 0;
  };
  Kept kept_now() const;
  void write(const StoredFile& file) const;

  const std::string directory_, beside_;
  const int64_t most_bytes_;
  mutable std::mutex mutex_;
};

/// The kind of files' ids.
inline constexpr std::string_view kFileKind = "file-";

/// The kind ("file-") and 24 random hexadecimal digits.
std::string new_id(std::string_view kind);
/// Whether a text may be an id of that kind, and so part of a path.
bool is_id(std::string_view text, std::string_view kind);
/// Whether base::AtomicFile names files so while it writes them.
bool is_half_written(std::string_view name);

}  // namespace trireme::serve
