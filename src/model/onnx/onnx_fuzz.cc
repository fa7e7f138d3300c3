// libFuzzer entry: any bytes either import as an ONNX model or give a clear error.
#include <cstdint>
#include <memory>
#include <string>

#include "model/onnx/import.h"
#include "tests/fuzz_bounds.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const trireme::fuzz::BoundedWork bounded(size,
                                           {.fixed_peak_bytes = size_t{32} << 20, .peak_per_byte = 4096});
  const auto owner = std::make_shared<std::string>(reinterpret_cast<const char*>(data), size);
  try {
    trireme::model::onnx::import_onnx(*owner, owner, "");
  } catch (const trireme::base::Error& e) {
    if (e.code() == trireme::base::ErrorCode::internal) __builtin_trap();
  }
  return 0;
}
