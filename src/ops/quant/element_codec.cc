// Reads and writes single elements of any type as wide values.
#include "ops/quant/element_codec.h"

#include "ops/elementwise/small_float.h"

namespace trireme::ops {
namespace {

using tensor::DType;

uint8_t code_at(const void* base, int64_t i, int bits) {
  const uint8_t* bytes = static_cast<const uint8_t*>(base);
  if (bits == 8) return bytes[i];
  const int64_t per_byte = 8 / bits;
  return static_cast<uint8_t>((bytes[i / per_byte] >> (i % per_byte * bits)) & ((1 << bits) - 1));
}

}  // namespace

double read_element(DType type, const void* base, int64_t i) {
  const int bits = tensor::bits_of(type);
  if (tensor::is_float(type) && bits <= 8) return double(decode_small_float(type, code_at(base, i, bits)));
  if (bits < 8) {
    const int code = code_at(base, i, bits);
    const bool is_negative = (type == DType::i4 || type == DType::i2) && (code >> (bits - 1)) != 0;
    return is_negative ? code - (1 << bits) : code;
  }
  return tensor::visit_dtype(
      type, [&](auto t) { return static_cast<double>(static_cast<const decltype(t)*>(base)[i]); });
}

IntegerRange range_of(DType type) {
  const int bits = tensor::bits_of(type);
  const bool is_signed =
      type == DType::i2 || type == DType::i4 || type == DType::i8 || type == DType::i16 || type == DType::i32;
  if (is_signed) return {-(int64_t{1} << (bits - 1)), (int64_t{1} << (bits - 1)) - 1};
  return {0, (int64_t{1} << bits) - 1};
}

void write_code(DType type, void* base, int64_t i, uint8_t code) {
  const int bits = tensor::bits_of(type);
  uint8_t* bytes = static_cast<uint8_t*>(base);
  if (bits == 8) {
    bytes[i] = code;
    return;
  }
  const int64_t per_byte = 8 / bits;
  const int shift = static_cast<int>(i % per_byte) * bits;
  const int kept = shift == 0 ? 0 : bytes[i / per_byte];
  bytes[i / per_byte] = static_cast<uint8_t>(kept | ((code & ((1 << bits) - 1)) << shift));
}

void write_integer(DType type, void* base, int64_t i, int64_t value) {
  switch (type) {
    case DType::i16: static_cast<int16_t*>(base)[i] = static_cast<int16_t>(value); return;
    case DType::u16: static_cast<uint16_t*>(base)[i] = static_cast<uint16_t>(value); return;
    case DType::i32: static_cast<int32_t*>(base)[i] = static_cast<int32_t>(value); return;
    default: write_code(type, base, i, static_cast<uint8_t>(value)); return;
  }
}

}  // namespace trireme::ops
