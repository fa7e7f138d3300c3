// libFuzzer entry: any bytes either import as an ONNX model or give a clear error.
#include <cstdint>
#include <memory>
#include <string>

#include "model/onnx/import.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto owner = std::make_shared<std::string>(reinterpret_cast<const char*>(data), size);
  try {
    trireme::model::onnx::import_onnx(*owner, owner, "");
  } catch (const trireme::base::Error& e) {
    if (e.code() == trireme::base::ErrorCode::internal) __builtin_trap();
  }
  return 0;
}
