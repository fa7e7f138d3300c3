// Fuzzes arrival traces: any text is read or refused; what is read rises in time.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "base/error.h"
#include "load/requests/trace.h"
#include "tests/fuzz_bounds.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace trireme;
  const fuzz::BoundedWork bounded(size);
  try {
    int64_t last = 0;
    for (const load::Arrival& a : load::parse_trace({reinterpret_cast<const char*>(data), size})) {
      if (a.at_ns < last || a.length < 0) std::abort();
      last = a.at_ns;
    }
  } catch (const base::Error& e) {
    if (e.code() == base::ErrorCode::internal) std::abort();
  }
  return 0;
}
