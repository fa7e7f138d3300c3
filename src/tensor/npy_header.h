// The header of NumPy's .npy files.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "tensor/shape.h"

namespace trireme::tensor {

struct NpyHeader {
  DType dtype = DType::f32;
  bool is_big_endian = false;
  bool is_column_major = false;
  Dims dims;
  size_t bytes = 0;  ///< of the header: the data begins behind them
};

inline constexpr size_t kMaxNpyRank = 64;  // as in NumPy 2

/// Reads the header at the beginning of a file (format 1 to 3). Throws unsupported for element types we do
/// not have, invalid_argument for a broken or cut-off header.
NpyHeader parse_npy_header(std::string_view file);

/// Bytes that the header at the beginning of a file takes, told by its first 12 bytes; 0: they are none.
size_t npy_header_bytes(std::string_view head);

/// A header of format 1 for row-major data of this machine's byte order. Throws unsupported for bf16 and the
/// small types, which NumPy lacks.
std::string npy_header(DType dtype, const Dims& dims);

}  // namespace trireme::tensor
