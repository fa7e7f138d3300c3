// Fuzzes chat templates: any bytes as a template parse and render, or are refused, in bounded time and
// memory.
#include <cstdlib>
#include <string_view>

#include "base/error.h"
#include "data/template/chat_template.h"
#include "tests/fuzz_bounds.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using trireme::base::Json;
  const trireme::fuzz::BoundedWork bounded(size,
                                           {.fixed_peak_bytes = size_t{256} << 20, .peak_per_byte = 8192});
  static const Json kMessages = trireme::base::parse_json(
      R"([{"role":"system","content":"S"},{"role":"user","content":[{"type":"text","text":"a \u00e9"}]},
          {"role":"assistant","content":"b",
           "tool_calls":[{"function":{"name":"f","arguments":{"x":[1,null,2.5]}}}]}])");
  try {
    const trireme::data::ChatTemplate chat(std::string_view(reinterpret_cast<const char*>(data), size),
                                           Json::object({{"eos_token", "</s>"}}));
    chat.render(kMessages, Json::array({Json::object({{"type", "function"}})}));
  } catch (const trireme::base::Error& e) {
    if (e.code() == trireme::base::ErrorCode::internal) std::abort();
  }
  return 0;
}
