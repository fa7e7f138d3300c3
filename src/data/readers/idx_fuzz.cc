// libFuzzer entry: any bytes, packed or not, are an IDX file of exactly the stated size, or give a clear
// error.
#include <cstdint>
#include <string>

#include "base/error.h"
#include "data/readers/readers.h"
#include "tests/fuzz_bounds.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  const trireme::fuzz::BoundedWork bounded(size,
                                           {.fixed_peak_bytes = size_t{32} << 20, .peak_per_byte = 4096});
  using namespace trireme;
  constexpr int64_t kLimit = 1 << 20;
  std::string file(reinterpret_cast<const char*>(bytes), size);
  try {
    if (file.starts_with("\x1f\x8b")) file = data::gunzip(file, kLimit);
    if (file.size() > kLimit && file.size() > size) __builtin_trap();
    const data::IdxHeader header = data::parse_idx(file);
    if (header.header_bytes + header.data_bytes != file.size()) __builtin_trap();
    if (header.dims.empty()) __builtin_trap();
  } catch (const base::Error& e) {
    if (e.code() == base::ErrorCode::internal) __builtin_trap();
  }
  return 0;
}
