// Bytes of a tensor in the form that both protocols of KServe use.
#include "serve/core/tensor_bytes.h"

namespace trireme::serve {

http::BodyPart tensor_bytes(const WireTensor& t) {
  if (!t.type) return http::BodyPart(bytes_of_strings(t.strings));
  const auto* data = reinterpret_cast<const char*>(t.values.raw());
  return http::BodyPart(std::string_view(data, static_cast<size_t>(t.values.bytes())), t.values.owner());
}

}  // namespace trireme::serve
