// NumPy's .npy files: handles the byte order and memory order that the header states.
#include "model/npy.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/files/file.h"
#include "tensor/element_bytes.h"
#include "tensor/npy_header.h"

namespace trireme::model {
namespace {

using tensor::DType;
using tensor::Tensor;

Tensor swap_bytes(const Tensor& t) {
  Tensor out = t.clone();
  const int64_t size = element_bytes(t.dtype());
  for (int64_t i = 0; i < t.bytes(); i += size)
    std::reverse(out.mutable_raw() + i, out.mutable_raw() + i + size);
  return out;
}

/// Column-major bytes -> row-major tensor.
Tensor to_row_major(const Tensor& t) {
  Tensor out = Tensor::empty(t.dtype(), t.dims());
  const int64_t size = element_bytes(t.dtype());
  const size_t rank = t.rank();
  std::array<int64_t, tensor::kMaxNpyRank> at{}, stride{1};
  for (size_t d = 1; d < rank; ++d) stride[d] = stride[d - 1] * t.dims()[d - 1];
  int64_t source = 0;
  for (int64_t i = 0; i < t.elements(); ++i) {
    std::memcpy(out.mutable_raw() + i * size, t.raw() + source * size, static_cast<size_t>(size));
    for (size_t d = rank; d-- > 0;) {
      source += stride[d];
      if (++at[d] < t.dims()[d]) break;
      source -= stride[d] * t.dims()[d];
      at[d] = 0;
    }
  }
  return out;
}

}  // namespace

Tensor parse_npy(std::string_view bytes, std::shared_ptr<const void> owner) {
  const tensor::NpyHeader header = tensor::parse_npy_header(bytes);
  const std::string_view data = bytes.substr(header.bytes);
  const int64_t wanted = bytes_of(header.dtype, tensor::element_count(header.dims));
  base::require(static_cast<int64_t>(data.size()) >= wanted, "npy file has ", data.size(),
                " bytes of data, shape ", tensor::to_string(header.dims), " needs ", wanted);
  const auto span = std::as_bytes(std::span(data.data(), static_cast<size_t>(wanted)));
  Tensor t = Tensor::view(header.dtype, header.dims, span, std::move(owner));
  if (reinterpret_cast<uintptr_t>(data.data()) % static_cast<size_t>(element_bytes(header.dtype)) != 0)
    t = t.clone();
  if (header.is_big_endian) t = swap_bytes(t);
  if (header.is_column_major && t.rank() > 1) t = to_row_major(t);
  if (t.dtype() == DType::boolean) {
    t = t.clone();
    for (int64_t i = 0; i < t.bytes(); ++i)
      t.mutable_raw()[i] = t.raw()[i] == std::byte{0} ? std::byte{0} : std::byte{1};
  }
  return t;
}

Tensor read_npy(const std::string& path) {
  const auto file = base::MappedFile::open(path);
  try {
    return parse_npy(file->text(), file);
  } catch (const base::Error& e) {
    throw e.with(base::concat("file '", path, "'"));
  }
}

void write_npy(const std::string& path, const Tensor& t) {
  const std::string header = tensor::npy_header(t.dtype(), t.dims());
  base::AtomicFile file(path);
  file.write(header);
  file.write(std::string_view(reinterpret_cast<const char*>(t.raw()), static_cast<size_t>(t.bytes())));
  file.commit();
}

}  // namespace trireme::model
