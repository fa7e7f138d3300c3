// libFuzzer entry: a request for pages is refused with an error, or says what it says once more.
#include <cstdint>
#include <cstdlib>

#include "base/error.h"
#include "serve/models/pages_request.h"
#include "tests/fuzz_bounds.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const trireme::fuzz::BoundedWork bounded(size);
  using namespace trireme::serve;
  try {
    const PagesRequest asked = pages_request({reinterpret_cast<const char*>(data), size});
    const PagesRequest again = pages_request(to_json(asked));
    const bool is_same = again.tokens == asked.tokens && again.first == asked.first &&
                         again.key == asked.key && again.salt == asked.salt &&
                         again.adapter == asked.adapter && again.priority == asked.priority;
    if (!is_same || asked.tokens.empty() || asked.salt.size() > PagesRequest::kMostSalt) std::abort();
  } catch (const trireme::base::Error& error) {
    if (error.code() != trireme::base::ErrorCode::invalid_argument) std::abort();
  }
  return 0;
}
