// Fuzzes model configurations, config.pbtxt or JSON: any text is read or refused; what is read prints as JSON
// that parses.
#include <cstdlib>
#include <string_view>

#include "base/error.h"
#include "serve/config/model_config.h"
#include "tests/fuzz_bounds.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace trireme;
  const fuzz::BoundedWork bounded(size);
  try {
    const std::string_view text(reinterpret_cast<const char*>(data), size);
    const bool is_json = text.starts_with('{');
    const serve::ModelConfig config =
        is_json ? serve::parse_model_config_json(text) : serve::parse_model_config(text);
    base::parse_json(serve::config_json(config).dump());
  } catch (const base::Error& e) {
    if (e.code() == base::ErrorCode::internal) std::abort();
  }
  return 0;
}
