// A file that a fuzz target gives its reader: one a process, written anew for every input.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "base/error.h"
#include "data/dataset/dataset.h"

namespace trireme::data {

/// In a directory of its own, which goes away with it.
class FuzzFile {
 public:
  explicit FuzzFile(const std::string& name) {
    std::string pattern = (std::filesystem::temp_directory_path() / "trireme-fuzz-XXXXXX").string();
    if (::mkdtemp(pattern.data()) == nullptr) std::abort();
    directory_ = pattern;
    path_ = directory_ + "/" + name;
  }
  ~FuzzFile() {
    std::error_code ignored;
    std::filesystem::remove_all(directory_, ignored);
  }
  FuzzFile(const FuzzFile&) = delete;
  FuzzFile& operator=(const FuzzFile&) = delete;

  const std::string& path() const { return path_; }
  void write(std::string_view bytes) const {
    std::ofstream(path_, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  }

 private:
  std::string directory_, path_;
};

/// Reads every sample of the data set that `open` makes, each value to its last byte. What is broken must be
/// said so, by opening or by reading; an internal error is none of the file's.
template <class Open>
void read_all(const Open& open) {
  const auto must_be_clear = [](const auto& body) {
    try {
      body();
    } catch (const base::Error& e) {
      if (e.code() == base::ErrorCode::internal) std::abort();
    }
  };
  must_be_clear([&] {
    const DatasetPtr set = open();
    for (int64_t i = 0; i < set->size(); ++i) {
      must_be_clear([&] {
        for (const Value& v : set->read(i).values) {
          if (v.tensor.defined()) tensor::content_hash(v.tensor);
          if (v.tensor.defined() == !v.strings.empty()) std::abort();  // one of the two
        }
      });
    }
  });
}

}  // namespace trireme::data
