// Fuzzes bodies of generate requests: any text is a request that fits the model's inputs, or is refused.
#include <cstdint>
#include <cstdlib>

#include "base/error.h"
#include "serve/config/model_config.h"
#include "serve/kserve/kserve_generate.h"
#include "tests/fuzz_bounds.h"

namespace {

using namespace trireme;

std::vector<serve::TensorConfig> inputs() {
  using tensor::DType;
  return {{.name = "text_input", .type = std::nullopt, .dims = {1}, .label_filename = {}},
          {.name = "x", .type = DType::f32, .dims = {-1, 2}, .label_filename = {}},
          {.name = "n", .type = DType::i8, .dims = {1}, .is_optional = true, .label_filename = {}},
          {.name = "b", .type = DType::boolean, .dims = {-1}, .is_optional = true, .label_filename = {}}};
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 1) return 0;
  static const std::vector<serve::TensorConfig> kInputs = inputs();
  const fuzz::BoundedWork bounded(size);
  try {
    const std::string_view body(reinterpret_cast<const char*>(data + 1), size - 1);
    const serve::InferRequest request = serve::generate_request(body, kInputs, (data[0] & 1) != 0);
    for (const serve::WireTensor& t : request.inputs) {
      const int64_t elements = serve::wire_elements(t.name, t.dims);
      if (t.type && (t.values.dims() != t.dims || t.values.dtype() != *t.type)) std::abort();
      if (!t.type && static_cast<int64_t>(t.strings.size()) != elements) std::abort();
    }
  } catch (const base::Error& e) {
    if (e.code() == base::ErrorCode::internal) std::abort();
  }
  return 0;
}
