// A place for the files of a test.
#pragma once

#include <unistd.h>

#include <filesystem>
#include <string>

namespace trireme::model::hf {

/// The path of a temporary directory, not yet made, that is deleted with the test.
struct Scratch {
  explicit Scratch(const std::string& name)
      : path((std::filesystem::temp_directory_path() / ("trireme_hf." + name + std::to_string(::getpid())))
                 .string()) {
    std::filesystem::remove_all(path);
  }
  ~Scratch() { std::filesystem::remove_all(path); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  std::string path;
};

}  // namespace trireme::model::hf
