// libFuzzer entry: any bytes either read as GGUF, with all values by their getters, or give a clear error.
#include <cstdint>
#include <memory>
#include <string>

#include "base/error.h"
#include "tensor/gguf/gguf_file.h"
#include "tests/fuzz_bounds.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using trireme::tensor::GgufKind;
  const trireme::fuzz::BoundedWork bounded(size);
  const auto owner = std::make_shared<std::string>(reinterpret_cast<const char*>(data), size);
  try {
    const auto file = trireme::tensor::GgufFile::parse(*owner, owner);
    for (const auto& [key, value] : file.metadata().entries()) {
      try {
        if (value.is_array && value.kind == GgufKind::text) file.metadata().texts(key);
        if (value.is_array && value.kind != GgufKind::text) file.metadata().numbers(key);
        if (!value.is_array && value.kind == GgufKind::text) file.metadata().text(key);
        if (!value.is_array && value.kind != GgufKind::text) file.metadata().number(key);
      } catch (const trireme::base::Error& e) {
        if (e.code() == trireme::base::ErrorCode::internal) __builtin_trap();
      }
    }
  } catch (const trireme::base::Error& e) {
    if (e.code() == trireme::base::ErrorCode::internal) __builtin_trap();
  }
  return 0;
}
