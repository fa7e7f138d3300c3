// libFuzzer entry: any bytes either read as .npy, .npz or an ONNX tensor, or give a clear error.
#include <cstdint>
#include <memory>
#include <string>

#include "model/npy.h"
#include "model/onnx/tensor_proto.h"
#include "tests/fuzz_bounds.h"

namespace {

/// Reads every byte, so that a view beyond its file is detected.
void touch(const trireme::tensor::Tensor& t) { trireme::tensor::content_hash(t); }

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const trireme::fuzz::BoundedWork bounded(size,
                                           {.fixed_peak_bytes = size_t{32} << 20, .peak_per_byte = 4096});
  using namespace trireme;
  const auto owner = std::make_shared<std::string>(reinterpret_cast<const char*>(data), size);
  try {
    if (owner->starts_with("\x93NUMPY")) {
      touch(model::parse_npy(*owner, owner));
    } else if (owner->starts_with("PK")) {
      for (const auto& [name, t] : model::parse_npz(*owner, owner)) touch(t);
    } else {
      model::onnx::TensorSource source{.owner = owner, .directory = {}};
      touch(model::onnx::make_tensor(model::onnx::parse_tensor(*owner), source));
    }
  } catch (const base::Error& e) {
    if (e.code() == base::ErrorCode::internal) __builtin_trap();
  }
  return 0;
}
