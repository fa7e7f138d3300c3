// Addresses without memory.
#include "tensor/absent.h"

#include <sys/mman.h>

#include "base/error.h"

namespace trireme::tensor {

Tensor absent(DType type, Dims dims) {
  const auto bytes = static_cast<size_t>(bytes_of(type, element_count(dims)));
  if (bytes == 0) return Tensor::empty(type, std::move(dims));
  void* at = ::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED)
    base::fail(base::ErrorCode::exhausted, "no addresses for a tensor of ", bytes, " bytes");
  const std::shared_ptr<const void> owner(at,
                                          [bytes](const void* p) { ::munmap(const_cast<void*>(p), bytes); });
  return Tensor::view(type, std::move(dims), {static_cast<const std::byte*>(at), bytes}, owner);
}

}  // namespace trireme::tensor
