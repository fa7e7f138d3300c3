// Libraries of the toolkit that are found when they are needed: programs start without them.
#pragma once

#include <string>
#include <vector>

namespace trireme::cuda {

/// An opened library; stays open.
class ToolkitLibrary {
 public:
  /// `name` as the loader knows it ("libcublasLt.so.13"), searched in the directories of
  /// $TRIREME_CUDA_LIBS (separated by colons; nvidia/*/lib below them too), where the loader looks by itself,
  /// in $CUDA_HOME, /usr/local/cuda, and in the Python packages of NVIDIA of $VIRTUAL_ENV, $CONDA_PREFIX and
  /// the system. Throws unavailable naming the places.
  explicit ToolkitLibrary(const std::string& name);

  void* handle() const { return handle_; }
  const std::string& path() const { return path_; }

  /// Throws unavailable if the library lacks it.
  template <class Function>
  void find(Function& function, const char* symbol) const {
    function = reinterpret_cast<Function>(need(symbol));
  }

 private:
  void* need(const char* symbol) const;
  std::string path_;
  void* handle_ = nullptr;
};

/// Where ToolkitLibrary looks, in its order; an empty entry is the loader's own way.
std::vector<std::string> toolkit_directories();

}  // namespace trireme::cuda
