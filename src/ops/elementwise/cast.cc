// Conversion between element types: one wide value per element in between, or directly for pairs of plain
// types.
#include "ops/elementwise/cast.h"

#include <array>

#include "ops/elementwise/row_kernels.h"
#include "tensor/element_math.h"

namespace trireme::ops {
namespace {

using tensor::DType;

template <class To, class From>
void convert_run(const From* x, To* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] = math::converted<To>(static_cast<Arithmetic<From>>(x[i]));
}

bool is_packed_int(DType t) { return tensor::bits_of(t) < 8 && t != DType::f4e2m1; }

uint8_t code_at(const void* base, int64_t i, int bits) {
  const uint8_t* bytes = static_cast<const uint8_t*>(base);
  if (bits == 8) return bytes[i];
  const int per_byte = 8 / bits;
  return static_cast<uint8_t>(bytes[i / per_byte] >> (i % per_byte * bits)) &
         static_cast<uint8_t>((1 << bits) - 1);
}

void set_code(void* base, int64_t i, int bits, uint8_t code) {
  uint8_t* bytes = static_cast<uint8_t*>(base);
  if (bits == 8) {
    bytes[i] = code;
    return;
  }
  const int per_byte = 8 / bits;
  const int shift = static_cast<int>(i % per_byte) * bits;
  const uint8_t mask = static_cast<uint8_t>(((1 << bits) - 1) << shift);
  uint8_t& byte = bytes[i / per_byte];
  // The first element of a byte clears it, so that padding bits of a last byte are zero.
  byte = shift == 0 ? code : static_cast<uint8_t>((byte & ~mask) | (code << shift));
}

constexpr int64_t kChunk = 256;  // a whole number of bytes for every packing

/// Widens small elements to floats or (packed integers) to int8.
template <class Wide>
void widen(DType from, const void* in, int64_t at, Wide* wide, int64_t n) {
  const int bits = tensor::bits_of(from);
  for (int64_t i = 0; i < n; ++i) {
    const uint8_t code = code_at(in, at + i, bits);
    if constexpr (std::is_same_v<Wide, float>) {
      wide[i] = decode_small_float(from, code);
    } else {
      const bool is_signed = from == DType::i4 || from == DType::i2;
      wide[i] = static_cast<Wide>(is_signed ? static_cast<int8_t>(code << (8 - bits)) >> (8 - bits) : code);
    }
  }
}

template <class Wide>
void narrow(const CastRule& rule, const Wide* wide, void* out, int64_t at, int64_t n) {
  const int bits = tensor::bits_of(rule.to);
  for (int64_t i = 0; i < n; ++i) {
    if constexpr (std::is_same_v<Wide, float>) {
      set_code(out, at + i, bits, encode_small_float(rule.to, wide[i], rule.saturate, rule.rounding));
    } else {
      set_code(out, at + i, bits, static_cast<uint8_t>(wide[i]) & static_cast<uint8_t>((1 << bits) - 1));
    }
  }
}

/// Writes a chunk of plain values of type T to any target type.
template <class T>
void store(const CastRule& rule, const T* x, void* out, int64_t at, int64_t n) {
  if (has_arithmetic(rule.to)) {
    tensor::visit_dtype(rule.to,
                        [&](auto zero) { convert_run(x, static_cast<decltype(zero)*>(out) + at, n); });
  } else if (is_packed_int(rule.to)) {
    std::array<int64_t, kChunk> wide;
    convert_run(x, wide.data(), n);
    narrow(rule, wide.data(), out, at, n);
  } else {
    std::array<float, kChunk> wide;
    convert_run(x, wide.data(), n);
    narrow(rule, wide.data(), out, at, n);
  }
}

}  // namespace

void cast_elements(const CastRule& rule, const void* in, void* out, int64_t begin, int64_t end) {
  for (int64_t at = begin; at < end; at += kChunk) {
    const int64_t n = std::min(kChunk, end - at);
    if (has_arithmetic(rule.from)) {
      tensor::visit_dtype(rule.from, [&](auto zero) {
        store(rule, static_cast<const decltype(zero)*>(in) + at, out, at, n);
      });
    } else if (is_packed_int(rule.from)) {
      std::array<int8_t, kChunk> wide;
      widen(rule.from, in, at, wide.data(), n);
      store(rule, wide.data(), out, at, n);
    } else {
      std::array<float, kChunk> wide;
      widen(rule.from, in, at, wide.data(), n);
      store(rule, wide.data(), out, at, n);
    }
  }
}

tensor::DType dtype_from_onnx(int64_t number) {
  // The numbers of TensorProto.DataType; 8 is string, 14 and 15 are complex types.
  switch (number) {
    case 1: return DType::f32;
    case 2: return DType::u8;
    case 3: return DType::i8;
    case 4: return DType::u16;
    case 5: return DType::i16;
    case 6: return DType::i32;
    case 7: return DType::i64;
    case 9: return DType::boolean;
    case 10: return DType::f16;
    case 11: return DType::f64;
    case 12: return DType::u32;
    case 13: return DType::u64;
    case 16: return DType::bf16;
    case 17: return DType::f8e4m3fn;
    case 18: return DType::f8e4m3fnuz;
    case 19: return DType::f8e5m2;
    case 20: return DType::f8e5m2fnuz;
    case 21: return DType::u4;
    case 22: return DType::i4;
    case 23: return DType::f4e2m1;
    case 24: return DType::f8e8m0;
    case 25: return DType::u2;
    case 26: return DType::i2;
    default:
      base::fail_unsupported("element type number ", number,
                             " (strings and complex numbers are not tensors here)");
  }
}

}  // namespace trireme::ops
