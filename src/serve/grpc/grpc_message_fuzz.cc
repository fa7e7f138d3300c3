// Fuzzes gRPC inference messages: bytes parse or are refused, with the same result for any split.
#include <cstdlib>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "serve/grpc/grpc_message.h"
#include "tests/fuzz_bounds.h"

namespace {

using namespace trireme;

/// The number of elements in all inputs; -1 if the message is refused.
int64_t look(const std::vector<std::string_view>& pieces) {
  try {
    const serve::GrpcInferRequest parsed = serve::parse_grpc_infer(pieces, nullptr, nullptr);
    int64_t sum = 0;
    for (const serve::WireTensor& t : parsed.request.inputs) {
      const int64_t elements = serve::wire_elements(t.name, t.dims);
      if (t.type && (t.values.dims() != t.dims || t.values.dtype() != *t.type)) std::abort();
      if (!t.type && static_cast<int64_t>(t.strings.size()) != elements) std::abort();
      sum += elements;
    }
    return sum;
  } catch (const base::Error& e) {
    if (e.code() == base::ErrorCode::internal) std::abort();
    return -1;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 1) return 0;
  const trireme::fuzz::BoundedWork bounded(size);
  const std::string_view message(reinterpret_cast<const char*>(data + 1), size - 1);
  const size_t step = data[0] % 32 + size_t{1};
  std::vector<std::string_view> pieces;
  for (size_t at = 0; at < message.size(); at += step) pieces.push_back(message.substr(at, step));
  if (look(pieces) != look({message})) std::abort();
  return 0;
}
