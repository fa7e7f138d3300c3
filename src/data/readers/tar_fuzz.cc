// libFuzzer entry: any bytes are a list of members that lie inside them, or give a clear error.
#include <cstdint>
#include <string_view>

#include "base/error.h"
#include "data/readers/tar.h"
#include "tests/fuzz_bounds.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  const trireme::fuzz::BoundedWork bounded(size);
  using namespace trireme;
  const std::string_view archive(reinterpret_cast<const char*>(bytes), size);
  try {
    uint64_t end = 0;
    for (const data::TarMember& m : data::list_tar(archive)) {
      // Members are in order, disjoint and inside the archive, so sizes cannot be invented.
      if (m.offset < end || m.offset > size || m.size > size - m.offset) __builtin_trap();
      end = m.offset + m.size;
    }
  } catch (const base::Error& e) {
    if (e.code() == base::ErrorCode::internal) __builtin_trap();
  }
  return 0;
}
