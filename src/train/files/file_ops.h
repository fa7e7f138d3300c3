// What a checkpoint asks of the file system, so that tests can fail or stop at every single call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace trireme::train {

/// A file being written. Each call throws base::Error: exhausted when the disk is full, else unavailable.
class OutputFile {
 public:
  virtual ~OutputFile() = default;
  virtual void write(std::span<const std::byte> bytes) = 0;
  /// Returns when the bytes are on the disk.
  virtual void sync() = 0;
};

class FileOps {
 public:
  virtual ~FileOps() = default;
  virtual std::unique_ptr<OutputFile> create(const std::string& path) = 0;
  virtual void make_directory(const std::string& path) = 0;
  /// Makes the names inside a directory durable.
  virtual void sync_directory(const std::string& path) = 0;
  /// Atomic; replaces a file.
  virtual void rename(const std::string& from, const std::string& to) = 0;
  /// Two directories take each other's name at once; false where the file system cannot.
  virtual bool exchange(const std::string& a, const std::string& b) = 0;
  virtual void remove_tree(const std::string& path) = 0;
  /// Bytes that may still be written where `path` is; negative if unknown.
  virtual int64_t free_bytes(const std::string& path) = 0;
};

/// The machine's file system.
class PosixFiles : public FileOps {
 public:
  std::unique_ptr<OutputFile> create(const std::string& path) override;
  void make_directory(const std::string& path) override;
  void sync_directory(const std::string& path) override;
  void rename(const std::string& from, const std::string& to) override;
  bool exchange(const std::string& a, const std::string& b) override;
  void remove_tree(const std::string& path) override;
  int64_t free_bytes(const std::string& path) override;
};

}  // namespace trireme::train
