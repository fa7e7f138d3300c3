// Fuzzes config.pbtxt: any text is read or refused; what is read prints as JSON that parses.
#include <cstdlib>
#include <string_view>

#include "base/error.h"
#include "serve/model_config.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace trireme;
  try {
    const std::string_view text(reinterpret_cast<const char*>(data), size);
    const serve::ModelConfig config = serve::parse_model_config(text);
    base::parse_json(serve::config_json(config).dump());
  } catch (const base::Error& e) {
    if (e.code() == base::ErrorCode::internal) std::abort();
  }
  return 0;
}
