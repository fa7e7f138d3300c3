// Tensors with addresses but without memory, which remember the tensor that they round.
#include "tensor/rounded.h"

#include <sys/mman.h>

#include <cstring>

#include "base/error.h"
#include "tensor/absent.h"

namespace trireme::tensor {
namespace {

/// Unmaps the address range; source_of() recognizes such tensors by this type.
struct UnmapRounded {
  size_t bytes;
  DType type;
  Tensor source;
  void operator()(const void* at) const { ::munmap(const_cast<void*>(at), bytes); }
};

}  // namespace

Tensor rounded_later(const Tensor& source, DType type) {
  const auto bytes = static_cast<size_t>(bytes_of(type, source.elements()));
  if (bytes == 0) return Tensor::empty(type, source.dims());
  if (is_absent(source)) return absent(type, source.dims());
  void* at = ::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED)
    base::fail(base::ErrorCode::exhausted, "no addresses for a rounded weight of ", bytes, " bytes");
  const std::shared_ptr<const void> owner(static_cast<const void*>(at), UnmapRounded{bytes, type, source});
  return Tensor::view(type, source.dims(), {static_cast<const std::byte*>(at), bytes}, owner);
}

Tensor source_of(const Tensor& tensor) {
  if (!tensor.defined()) return {};
  const auto* made = std::get_deleter<UnmapRounded>(tensor.owner());
  const bool is_whole =
      made != nullptr && tensor.dtype() == made->type && static_cast<size_t>(tensor.bytes()) == made->bytes;
  return is_whole ? made->source.reshaped(tensor.dims()) : Tensor();
}

void fill_rounded(const Tensor& tensor, const Tensor& rounded) {
  base::check(source_of(tensor).defined() && rounded.type() == tensor.type(), "filling a ",
              tensor.type().to_string(), " with a ", rounded.type().to_string());
  const auto bytes = static_cast<size_t>(tensor.bytes());
  auto* at = const_cast<std::byte*>(tensor.raw());
  if (::mprotect(at, bytes, PROT_READ | PROT_WRITE) != 0)
    base::fail(base::ErrorCode::exhausted, "no memory for a rounded weight of ", bytes, " bytes");
  std::memcpy(at, rounded.raw(), bytes);
}

}  // namespace trireme::tensor
