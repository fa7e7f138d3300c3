// What tests of checkpoints share: scratch directories, and a file system that fails or ends the process.
#pragma once

#include <unistd.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "base/error.h"
#include "train/files/file_ops.h"

namespace trireme::train {

/// A fresh directory for one test.
inline std::string fresh(const std::string& name) {
  const std::string path =
      base::concat(std::filesystem::temp_directory_path().string(), "/checkpoint_", ::getpid(), "_", name);
  std::filesystem::remove_all(path);
  std::filesystem::create_directories(path);
  return path;
}

inline std::string error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const base::Error& e) {
    return e.message();
  }
  return "no error";
}

/// Fails, or ends the process, at the n-th call (from 0); a write has then written half.
class TroubledFiles : public FileOps {
 public:
  enum class How { fail, die };
  TroubledFiles(int64_t at, How how) : left_(at), how_(how) {}
  bool happened() const { return left_ < 0; }

  std::unique_ptr<OutputFile> create(const std::string& path) override {
    trouble();
    return std::make_unique<File>(*this, real_.create(path));
  }
  void make_directory(const std::string& path) override { trouble(), real_.make_directory(path); }
  void sync_directory(const std::string& path) override { trouble(), real_.sync_directory(path); }
  void rename(const std::string& from, const std::string& to) override { trouble(), real_.rename(from, to); }
  bool exchange(const std::string& a, const std::string& b) override {
    return trouble(), real_.exchange(a, b);
  }
  void remove_tree(const std::string& path) override { trouble(), real_.remove_tree(path); }
  int64_t free_bytes(const std::string& path) override { return real_.free_bytes(path); }

 private:
  class File : public OutputFile {
   public:
    File(TroubledFiles& owner, std::unique_ptr<OutputFile> real) : owner_(owner), real_(std::move(real)) {}
    void write(std::span<const std::byte> bytes) override {
      if (owner_.left_ == 0) real_->write(bytes.first(bytes.size() / 2));
      owner_.trouble();
      real_->write(bytes);
    }
    void sync() override { owner_.trouble(), real_->sync(); }

   private:
    TroubledFiles& owner_;
    std::unique_ptr<OutputFile> real_;
  };
  void trouble() {
    if (left_-- != 0) return;
    if (how_ == How::die) ::_exit(9);
    base::fail(base::ErrorCode::exhausted, "cannot write: no space left on device");
  }

  PosixFiles real_;
  int64_t left_;
  How how_;
};

}  // namespace trireme::train
