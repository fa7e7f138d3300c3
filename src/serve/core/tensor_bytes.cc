// Bytes of a tensor as both wire forms of KServe carry them.
#include "serve/core/tensor_bytes.h"

namespace trireme::serve {

http::BodyPart tensor_bytes(const WireTensor& t) {
  if (!t.type) return http::BodyPart(bytes_of_strings(t.strings));
  const auto* data = reinterpret_cast<const char*>(t.values.raw());
  return http::BodyPart(std::string_view(data, static_cast<size_t>(t.values.bytes())), t.values.owner());
}

}  // namespace trireme::serve
