// Where files lie: directories of this machine, or buckets of an object store. Paths are URLs or plain paths.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::data {

/// A file that is read at any place, by several threads.
class StoreFile {
 public:
  virtual ~StoreFile() = default;
  virtual int64_t size() const = 0;
  /// Fills `out` from `offset` on. Throws `unavailable` where the store does not answer after its own
  /// retries, invalid_argument past the end.
  virtual void read(int64_t offset, std::span<std::byte> out) const = 0;
  /// What one read should ask for at least: object stores answer each after a delay.
  virtual int64_t block_bytes() const = 0;
};

/// A new file that appears whole under its name, or not at all. One thread.
class StoreWriter {
 public:
  virtual ~StoreWriter() = default;
  /// Throws exhausted where the disk is full, `unavailable` where the store does not answer.
  virtual void write(std::string_view bytes) = 0;
  virtual int64_t written_bytes() const = 0;
  /// Everything is on the disk, or accepted by the store, and under the final name. Without it nothing stays.
  virtual void commit() = 0;
};

struct StoreEntry {
  std::string path;
  int64_t size = 0;
  bool is_directory = false;
};

/// Any thread.
class Store {
 public:
  virtual ~Store() = default;
  /// Throws not_found, `unavailable`.
  virtual std::shared_ptr<const StoreFile> open(const std::string& path) const = 0;
  /// Replaces what has the name. Makes directories that lack.
  virtual std::unique_ptr<StoreWriter> create(const std::string& path) const = 0;
  /// What lies in a directory, sorted bytewise by name. Throws not_found.
  virtual std::vector<StoreEntry> list(const std::string& directory) const = 0;
  virtual bool exists(const std::string& path) const = 0;
  virtual bool is_directory(const std::string& path) const = 0;
  /// Does nothing where there is none.
  virtual void remove(const std::string& path) const = 0;
  virtual bool is_local() const = 0;
};

/// The store of "s3://bucket/…", "gs://bucket/…", "file:///…" or a plain path. Options of S3 come from the
/// environment, as its clients take them (AWS_ACCESS_KEY_ID, AWS_ENDPOINT_URL…), or from the URL's query
/// (region, endpoint_override, scheme, anonymous; of gs:// the last three). Throws unsupported for another
/// scheme and for builds without Arrow.
std::shared_ptr<const Store> store_of(const std::string& path);

/// Files that patterns name, each once, in the order of the patterns and sorted bytewise within one: a file,
/// a directory with all that lies below it, or a pattern with `*`, `?`, `[…]` and `**`. Names that begin with
/// '.' or '_' count only where they are named themselves. Throws not_found for a pattern that names nothing.
std::vector<std::string> expand_paths(const std::vector<std::string>& patterns);

}  // namespace trireme::data
