// Element types of tensors: their names, sizes, and how code is chosen by them.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/error.h"
#include "tensor/half.h"

namespace trireme::tensor {

enum class DType : uint8_t {
  f32,
  f64,
  f16,
  bf16,
  i8,
  u8,
  i16,
  u16,
  i32,
  u32,
  i64,
  u64,
  boolean,
  f8e4m3fn,
  f8e4m3fnuz,
  f8e5m2,
  f8e5m2fnuz,
  f8e8m0,  // one byte each
  i4,
  u4,
  f4e2m1,  // two per byte, low nibble first
  i2,
  u2,  // four per byte, lowest bits first
};
inline constexpr int kDTypeCount = static_cast<int>(DType::u2) + 1;

/// Bits of one element; sub-byte types are packed without padding inside a tensor.
int bits_of(DType type);

/// Bytes that `elements` elements take, rounded up to whole bytes.
inline int64_t bytes_of(DType type, int64_t elements) { return (elements * bits_of(type) + 7) / 8; }

/// "f32", "i64", "bool" …: the spelling of the graph's text form.
std::string_view name_of(DType type);

/// The reverse of name_of. Throws invalid_argument for an unknown name.
DType dtype_from_name(std::string_view name);

bool is_float(DType type);    ///< f16, bf16, f32, f64 and the 8- and 4-bit floats
bool is_integer(DType type);  ///< signed and unsigned integers of any width; not boolean

/// C++ type of an element -> DType; only types with a byte-sized C++ representation.
template <class T>
constexpr DType dtype_of();
template <>
constexpr DType dtype_of<float>() {
  return DType::f32;
}
template <>
constexpr DType dtype_of<double>() {
  return DType::f64;
}
template <>
constexpr DType dtype_of<Half>() {
  return DType::f16;
}
template <>
constexpr DType dtype_of<BFloat16>() {
  return DType::bf16;
}
template <>
constexpr DType dtype_of<int8_t>() {
  return DType::i8;
}
template <>
constexpr DType dtype_of<uint8_t>() {
  return DType::u8;
}
template <>
constexpr DType dtype_of<int16_t>() {
  return DType::i16;
}
template <>
constexpr DType dtype_of<uint16_t>() {
  return DType::u16;
}
template <>
constexpr DType dtype_of<int32_t>() {
  return DType::i32;
}
template <>
constexpr DType dtype_of<uint32_t>() {
  return DType::u32;
}
template <>
constexpr DType dtype_of<int64_t>() {
  return DType::i64;
}
template <>
constexpr DType dtype_of<uint64_t>() {
  return DType::u64;
}
template <>
constexpr DType dtype_of<bool>() {
  return DType::boolean;
}

/// Calls f(T{}) with the C++ type of `type`. Throws unsupported for types without one (f8*, f4, i4, u4, i2,
/// u2).
template <class F>
decltype(auto) visit_dtype(DType type, F&& f) {
  switch (type) {
    case DType::f32: return f(float{});
    case DType::f64: return f(double{});
    case DType::f16: return f(Half{});
    case DType::bf16: return f(BFloat16{});
    case DType::i8: return f(int8_t{});
    case DType::u8: return f(uint8_t{});
    case DType::i16: return f(int16_t{});
    case DType::u16: return f(uint16_t{});
    case DType::i32: return f(int32_t{});
    case DType::u32: return f(uint32_t{});
    case DType::i64: return f(int64_t{});
    case DType::u64: return f(uint64_t{});
    case DType::boolean: return f(bool{});
    default: base::fail_unsupported("no arithmetic on element type ", name_of(type));
  }
}

}  // namespace trireme::tensor
