// Fuzzes Hugging Face directories: any config.json, index and weights load as a valid graph, or are refused.
// The input holds the three one after another, separated by 0xff.
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "base/error.h"
#include "ir/graph.h"
#include "model/hf/directory.h"
#include "tests/fuzz_bounds.h"

namespace {

using namespace trireme;

struct Directory {
  std::string path = "/tmp/trireme_fuzz_hf." + std::to_string(getpid());
  Directory() { std::filesystem::create_directories(path); }
  ~Directory() { std::filesystem::remove_all(path); }
  /// Empty content means that there is no file.
  void put(const std::string& name, std::string_view content) const {
    const std::string file = path + "/" + name;
    if (content.empty()) {
      ::unlink(file.c_str());
    } else {
      std::ofstream(file, std::ios::binary) << content;
    }
  }
};

/// Returns the part before the next 0xff, and removes it from `rest`.
std::string_view next_part(std::string_view& rest) {
  const size_t end = std::min(rest.find('\xff'), rest.size());
  const std::string_view part = rest.substr(0, end);
  rest.remove_prefix(std::min(end + 1, rest.size()));
  return part;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const Directory kDirectory;
  const fuzz::BoundedWork bounded(size);
  std::string_view rest(reinterpret_cast<const char*>(data), size);
  kDirectory.put("config.json", next_part(rest));
  const std::string_view index = next_part(rest);
  kDirectory.put("model.safetensors.index.json", index);
  kDirectory.put("model.safetensors", index.empty() ? rest : std::string_view());
  kDirectory.put("part", index.empty() ? std::string_view() : rest);
  try {
    const model::Model loaded = model::hf::load_directory(kDirectory.path);
    ir::verify(loaded.graph);
  } catch (const base::Error& e) {
    if (e.code() == base::ErrorCode::internal) std::abort();
  }
  return 0;
}
