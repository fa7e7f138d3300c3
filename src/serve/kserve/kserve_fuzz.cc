// Fuzzes inference requests: any body parses or is refused; a parsed request is consistent, so that batching
// can rely on its sizes when copying.
#include <cstdlib>
#include <string_view>

#include "base/error.h"
#include "serve/kserve/kserve_request.h"
#include "tests/fuzz_bounds.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace trireme;
  // The first two bytes give the length of the JSON part.
  if (size < 2) return 0;
  const fuzz::BoundedWork bounded(size);
  const std::string_view body(reinterpret_cast<const char*>(data + 2), size - 2);
  const size_t json_bytes = (data[0] | static_cast<size_t>(data[1]) << 8) % (body.size() + 1);
  try {
    const serve::InferRequest request = serve::parse_infer_request(body, json_bytes, nullptr);
    for (const serve::WireTensor& t : request.inputs) {
      const int64_t elements = serve::wire_elements(t.name, t.dims);
      if (t.type && (t.values.dims() != t.dims || t.values.dtype() != *t.type)) std::abort();
      if (!t.type && static_cast<int64_t>(t.strings.size()) != elements) std::abort();
      if (t.type == tensor::DType::boolean) {
        for (int64_t i = 0; i < elements; ++i) {
          if (t.values.raw()[i] > std::byte{1}) std::abort();
        }
      }
    }
  } catch (const base::Error& e) {
    if (e.code() == base::ErrorCode::internal) std::abort();
  }
  return 0;
}
