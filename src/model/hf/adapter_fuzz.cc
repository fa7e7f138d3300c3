// Fuzzes adapters: any adapter_config.json and weights fit the modules of a small network, or are refused.
// The input holds one after the other, separated by 0xff.
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "base/error.h"
#include "model/hf/adapter.h"
#include "tests/fuzz_bounds.h"

namespace {

using namespace trireme;

struct Directory {
  std::string path = "/tmp/trireme_fuzz_adapter." + std::to_string(getpid());
  Directory() { std::filesystem::create_directories(path); }
  ~Directory() { std::filesystem::remove_all(path); }
  void put(const std::string& name, std::string_view content) const {
    std::ofstream(path + "/" + name, std::ios::binary) << content;
  }
};

void require_fit(const model::hf::Adapter& adapter, const model::hf::ModuleSizes& modules) {
  for (const model::hf::AdapterPart& part : adapter.parts) {
    const auto at = modules.find(part.module);
    const bool fits = at != modules.end() && part.a.rank() == 2 && part.b.rank() == 2 &&
                      part.a.dims()[1] == at->second.in && part.b.dims()[0] == at->second.out &&
                      part.b.dims()[1] == part.rank();
    if (!fits) std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const Directory kDirectory;
  static const model::hf::ModuleSizes kModules{{"model.layers.0.self_attn.q_proj", {4, 4}},
                                               {"model.layers.0.mlp.down_proj", {6, 4}}};
  const fuzz::BoundedWork bounded(size);
  const std::string_view all(reinterpret_cast<const char*>(data), size);
  const size_t end = std::min(all.find('\xff'), all.size());
  kDirectory.put("adapter_config.json", all.substr(0, end));
  kDirectory.put("adapter_model.safetensors", all.substr(std::min(end + 1, all.size())));
  try {
    require_fit(model::hf::read_adapter(kDirectory.path, kModules, base::Json()), kModules);
  } catch (const base::Error& e) {
    if (e.code() == base::ErrorCode::internal) std::abort();
  }
  return 0;
}
