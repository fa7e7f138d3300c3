// Files: read-only maps, whole reads, writes that appear complete or not at all, and paths that stay inside a
// root.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace trireme::base {

/// A whole file mapped read-only. Pages load on first touch; the mapping outlives a rename or removal of the
/// file. Truncating a mapped file under a running process is fatal (SIGBUS), as for every mapping: replace
/// files by rename.
class MappedFile {
 public:
  /// Throws not_found, or invalid_argument for a directory.
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&&) = delete;

  static std::shared_ptr<const MappedFile> open(const std::string& path) {
    return std::make_shared<const MappedFile>(path);
  }

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  std::string_view text() const { return {reinterpret_cast<const char*>(data_), size_}; }
  size_t size() const { return size_; }
  const std::string& path() const { return path_; }
  /// Gives back the memory that touched pages take; they come again, from the page cache, on the next touch.
  void release_pages() const;
  /// The same of the pages that lie wholly in `part`; of a part that lies elsewhere nothing.
  void release_pages(std::span<const std::byte> part) const;

 private:
  std::string path_;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

/// The file's bytes. Throws not_found, or exhausted if it is larger than `limit_bytes`.
std::string read_file(const std::string& path, size_t limit_bytes = size_t{1} << 31);

/// A file written beside its final path and moved there by commit(): readers see the old file or the whole
/// new one, also after a power cut. Without commit() nothing stays.
class AtomicFile {
 public:
  /// Opens a temporary file in the directory of `path`.
  explicit AtomicFile(std::string path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  /// Throws exhausted when the disk is full.
  void write(std::string_view bytes);
  int64_t written_bytes() const { return written_bytes_; }
  /// Flushes to the disk, renames, and flushes the directory.
  void commit();

 private:
  std::string path_;
  std::string temporary_;
  int fd_ = -1;
  int64_t written_bytes_ = 0;
};

void write_file_atomic(const std::string& path, std::string_view bytes);

bool file_exists(const std::string& path);

/// root/relative for a name that came from outside. Refuses (invalid_argument) an empty or absolute name, a
/// ".." component, a NUL byte, and a symbolic link that leads out of the root; only those of a snapshot in
/// Hugging Face's cache may lead to the blobs of the same model. The file itself need not exist. The check is
/// made now: the directory must not be writable by those who are kept out.
std::string safe_join(const std::string& root, std::string_view relative);

}  // namespace trireme::base
