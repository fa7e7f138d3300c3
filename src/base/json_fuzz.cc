// Fuzzes JSON: any bytes parse or are refused; what parses prints and parses back to the same value.
#include <cstdlib>
#include <string_view>

#include "base/error.h"
#include "base/json.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace trireme::base;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const JsonLimits limits{.depth = 100, .size_bytes = 1 << 20, .nan_and_infinity = true};
  try {
    const std::string printed = parse_json(text, limits).dump({.nan_and_infinity = true});
    // Compared as text: NaN differs from itself.
    if (parse_json(printed, limits).dump({.nan_and_infinity = true}) != printed) std::abort();
  } catch (const Error& e) {
    if (e.code() != ErrorCode::invalid_argument) std::abort();
  }
  return 0;
}
