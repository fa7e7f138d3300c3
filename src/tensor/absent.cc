// Tensors with addresses but without memory.
#include "tensor/absent.h"

#include <sys/mman.h>

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace trireme::tensor {
namespace {

/// Unmaps the address range; is_absent() recognizes such tensors by this type.
struct UnmapAbsent {
  size_t bytes;
  std::shared_ptr<const void> held;
  void operator()(const void* at) const { ::munmap(const_cast<void*>(at), bytes); }
};

}  // namespace

Tensor absent(DType type, Dims dims, std::shared_ptr<const void> held) {
  const auto bytes = static_cast<size_t>(bytes_of(type, element_count(dims)));
  if (bytes == 0) return Tensor::empty(type, std::move(dims));
  void* at = ::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED)
    base::fail(base::ErrorCode::exhausted, "no addresses for a tensor of ", bytes, " bytes");
  const std::shared_ptr<const void> owner(static_cast<const void*>(at), UnmapAbsent{bytes, std::move(held)});
  return Tensor::view(type, std::move(dims), {static_cast<const std::byte*>(at), bytes}, owner);
}

bool is_absent(const Tensor& tensor) {
  if (!tensor.defined()) return false;
  return std::get_deleter<UnmapAbsent>(tensor.owner()) != nullptr;
}

std::shared_ptr<const void> held_by(const Tensor& tensor) {
  const auto* made = tensor.defined() ? std::get_deleter<UnmapAbsent>(tensor.owner()) : nullptr;
  return made == nullptr ? nullptr : made->held;
}

bool has_absent(std::span<const Tensor> tensors) {
  return std::any_of(tensors.begin(), tensors.end(), [](const Tensor& t) { return is_absent(t); });
}

Tensor without_content(const Tensor& tensor) {
  return tensor.bytes() <= kSmallBytes || is_absent(tensor) ? tensor : absent(tensor.dtype(), tensor.dims());
}

}  // namespace trireme::tensor
