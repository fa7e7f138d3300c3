// Finds the toolkit's libraries in prefixes, Python packages and named directories.
#include "backend/cuda/device/toolkit_library.h"

#include <dlfcn.h>
#include <glob.h>

#include <cstdlib>
#include <string_view>

#include "base/error.h"

namespace trireme::cuda {
namespace {

void add_matches(std::vector<std::string>& out, const std::string& pattern) {
  glob_t found{};
  if (::glob(pattern.c_str(), GLOB_ONLYDIR, nullptr, &found) == 0) {
    for (size_t i = 0; i < found.gl_pathc; ++i) out.emplace_back(found.gl_pathv[i]);
  }
  ::globfree(&found);
}

/// The directories of NVIDIA's wheels below a Python prefix.
void add_python(std::vector<std::string>& out, const std::string& prefix) {
  for (const char* packages : {"site-packages", "dist-packages"})
    add_matches(out, prefix + "/lib/python3*/" + packages + "/nvidia/*/lib");
}

std::string environment(const char* name) {
  const char* text = std::getenv(name);
  return text == nullptr ? std::string() : std::string(text);
}

}  // namespace

std::vector<std::string> toolkit_directories() {
  std::vector<std::string> out;
  const std::string named = environment("TRIREME_CUDA_LIBS");
  for (size_t at = 0; at < named.size();) {
    const size_t end = std::min(named.find(':', at), named.size());
    if (const std::string directory = named.substr(at, end - at); !directory.empty()) {
      out.push_back(directory);
      add_matches(out, directory + "/nvidia/*/lib");
      add_matches(out, directory + "/*/lib");
    }
    at = end + 1;
  }
  out.emplace_back();
  for (const char* home : {"CUDA_HOME", "CUDA_PATH"}) {
    if (const std::string root = environment(home); !root.empty()) out.push_back(root + "/lib64");
  }
  out.emplace_back("/usr/local/cuda/lib64");
  for (const char* prefix : {"VIRTUAL_ENV", "CONDA_PREFIX"}) {
    if (const std::string root = environment(prefix); !root.empty()) add_python(out, root);
  }
  add_python(out, ".venv");
  add_python(out, "/usr/local");
  add_python(out, "/usr");
  add_matches(out, "/usr/lib/python3/dist-packages/nvidia/*/lib");
  return out;
}

ToolkitLibrary::ToolkitLibrary(const std::string& name) {
  std::string why;
  for (const std::string& directory : toolkit_directories()) {
    path_ = directory.empty() ? name : directory + "/" + name;
    // RTLD_GLOBAL: the parts of cuDNN must find symbols of each other and of cuBLAS.
    handle_ = ::dlopen(path_.c_str(), RTLD_NOW | RTLD_GLOBAL);
    if (handle_ != nullptr) return;
    const char* said = ::dlerror();
    // If a library exists but does not load, report that error rather than "no such file".
    if (why.empty() || (said != nullptr && std::string_view(said).find("No such file") == std::string::npos))
      why = said == nullptr ? "" : said;
  }
  base::fail(base::ErrorCode::unavailable, "CUDA: ", why,
             ": install the toolkit's libraries or NVIDIA's Python packages, or name their directories in "
             "TRIREME_CUDA_LIBS");
}

void* ToolkitLibrary::need(const char* symbol) const {
  void* found = ::dlsym(handle_, symbol);
  if (found == nullptr) {
    base::fail(base::ErrorCode::unavailable, "CUDA: ", path_, " has no ", symbol, ": it is too old");
  }
  return found;
}

}  // namespace trireme::cuda
