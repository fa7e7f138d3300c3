// libFuzzer entry: any bytes either read as safetensors or give a clear error.
#include <cstdint>
#include <memory>
#include <string>

#include "model/safetensors.h"
#include "tests/fuzz_bounds.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const trireme::fuzz::BoundedWork bounded(size);
  const auto owner = std::make_shared<std::string>(reinterpret_cast<const char*>(data), size);
  try {
    trireme::model::Safetensors::parse(*owner, owner);
  } catch (const trireme::base::Error& e) {
    if (e.code() == trireme::base::ErrorCode::internal) __builtin_trap();
  }
  return 0;
}
