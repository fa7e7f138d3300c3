// Tensors with addresses but without memory, which remember the tensors that they concatenate.
#include "tensor/joined.h"

#include <sys/mman.h>

#include <cstring>
#include <utility>

#include "base/error.h"
#include "tensor/absent.h"

namespace trireme::tensor {
namespace {

/// Unmaps the address range; joined_now() recognizes such tensors by this type.
struct UnmapJoined {
  size_t bytes;
  std::vector<Tensor> parts;
  size_t axis;
  void operator()(const void* at) const { ::munmap(const_cast<void*>(at), bytes); }
};

Dims joined_dims(const std::vector<Tensor>& parts, size_t axis) {
  base::check(!parts.empty() && axis < parts[0].rank(), "nothing to join along axis ", axis);
  Dims dims = parts[0].dims();
  dims[axis] = 0;
  for (const Tensor& part : parts) {
    Dims like = part.dims();
    base::check(part.dtype() == parts[0].dtype() && like.size() == dims.size(), "joining a ",
                part.type().to_string(), " to a ", parts[0].type().to_string());
    dims[axis] += std::exchange(like[axis], parts[0].dims()[axis]);
    base::check(like == parts[0].dims(), "joining a ", part.type().to_string(), " to a ",
                parts[0].type().to_string());
  }
  return dims;
}

/// Writes the parts row by row; a row of a part has one index for each axis before `axis`.
void write_joined(const UnmapJoined& made, std::byte* to) {
  const Dims& first = made.parts[0].dims();
  int64_t rows = 1;
  for (size_t i = 0; i < made.axis; ++i) rows *= first[i];
  for (int64_t row = 0; row < rows; ++row) {
    for (const Tensor& part : made.parts) {
      const int64_t bytes = part.bytes() / rows;
      std::memcpy(to, part.raw() + row * bytes, static_cast<size_t>(bytes));
      to += bytes;
    }
  }
}

const UnmapJoined* made_of(const Tensor& tensor) {
  if (!tensor.defined()) return nullptr;
  const auto* made = std::get_deleter<UnmapJoined>(tensor.owner());
  return made != nullptr && static_cast<size_t>(tensor.bytes()) == made->bytes ? made : nullptr;
}

}  // namespace

Tensor joined_later(std::vector<Tensor> parts, size_t axis) {
  const Dims dims = joined_dims(parts, axis);
  const DType type = parts[0].dtype();
  const auto bytes = static_cast<size_t>(bytes_of(type, element_count(dims)));
  if (bytes == 0) return Tensor::empty(type, dims);
  if (has_absent(parts)) return absent(type, dims);
  void* at = ::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED)
    base::fail(base::ErrorCode::exhausted, "no addresses for a joined weight of ", bytes, " bytes");
  const std::shared_ptr<const void> owner(static_cast<const void*>(at),
                                          UnmapJoined{bytes, std::move(parts), axis});
  return Tensor::view(type, dims, {static_cast<const std::byte*>(at), bytes}, owner);
}

bool is_joined(const Tensor& tensor) { return made_of(tensor) != nullptr; }

Tensor joined_now(const Tensor& tensor) {
  const UnmapJoined* made = made_of(tensor);
  if (made == nullptr) return {};
  Tensor whole = Tensor::empty(tensor.dtype(), tensor.dims());
  write_joined(*made, whole.mutable_raw());
  return whole;
}

void fill_joined(const Tensor& tensor) {
  const UnmapJoined* made = made_of(tensor);
  base::check(made != nullptr, "filling a ", tensor.type().to_string(), " that was not joined");
  auto* at = const_cast<std::byte*>(tensor.raw());
  if (::mprotect(at, made->bytes, PROT_READ | PROT_WRITE) != 0)
    base::fail(base::ErrorCode::exhausted, "no memory for a joined weight of ", made->bytes, " bytes");
  write_joined(*made, at);
}

}  // namespace trireme::tensor
