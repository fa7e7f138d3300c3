// Strides of elements: only types whose elements begin at whole bytes have one.
#pragma once

#include "tensor/dtype.h"

namespace trireme::tensor {

/// True for types of which several elements share a byte: i4, u4, f4e2m1, i2, u2.
inline bool is_packed(DType type) { return bits_of(type) % 8 != 0; }

/// Bytes from one element to the next. Throws unsupported for packed types: code that goes from element to
/// element by bytes would leave the tensor, which holds fewer bytes than elements.
inline int64_t element_bytes(DType type) {
  if (is_packed(type)) {
    base::fail_unsupported("elements of ", name_of(type), " share bytes: they cannot be taken one by one");
  }
  return bits_of(type) / 8;
}

}  // namespace trireme::tensor
