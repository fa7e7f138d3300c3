// Reading and writing single elements of any type, packed ones included, as wide values; for reference
// kernels.
#pragma once

#include <cstdint>

#include "tensor/dtype.h"

namespace trireme::ops {

/// Element `i` of an array of `type` as a double: exact for every type but 64-bit integers.
double read_element(tensor::DType type, const void* base, int64_t i);

/// Smallest and largest value of an integer type of at most 32 bits.
struct IntegerRange {
  int64_t lowest, highest;
};
IntegerRange range_of(tensor::DType type);

/// Writes integer `value` (already in range) as element i. Elements that share a byte must be written in
/// rising order by one thread: the first of a byte clears it.
void write_integer(tensor::DType type, void* base, int64_t i, int64_t value);

/// The same for the bit pattern of an 8- or 4-bit float.
void write_code(tensor::DType type, void* base, int64_t i, uint8_t code);

}  // namespace trireme::ops
