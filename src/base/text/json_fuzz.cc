// Fuzzes JSON: any bytes parse or are refused in bounded work; what parses prints and parses back to the same
// value, and its objects find and replace each of their members.
#include <cstdlib>
#include <string_view>

#include "base/error.h"
#include "base/text/json.h"
#include "tests/fuzz_bounds.h"

namespace {

using namespace trireme::base;

/// Builds every object anew with set(), as code that reads a request's parameters does.
Json rebuilt(const Json& json) {
  if (json.is_array()) {
    Json list = Json::array();
    for (const Json& item : json.as_array()) list.push_back(rebuilt(item));
    return list;
  }
  if (!json.is_object()) return json;
  Json object = Json::object();
  for (const JsonMember& member : json.as_object()) object.set(member.key, rebuilt(member.value));
  for (const JsonMember& member : json.as_object()) {
    if (!object.contains(member.key)) std::abort();
  }
  return object;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const trireme::fuzz::BoundedWork bounded(size);
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const JsonLimits limits{.depth = 100, .size_bytes = 1 << 20, .nan_and_infinity = true};
  try {
    const Json json = parse_json(text, limits);
    const std::string printed = json.dump({.nan_and_infinity = true});
    if (rebuilt(json).dump({.nan_and_infinity = true}) != printed) std::abort();
    // The texts are compared, because NaN differs from itself.
    if (parse_json(printed, limits).dump({.nan_and_infinity = true}) != printed) std::abort();
  } catch (const Error& e) {
    if (e.code() != ErrorCode::invalid_argument) std::abort();
  }
  return 0;
}
