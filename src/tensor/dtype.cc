// Element types of tensors: a table of names, widths and classes; conversion of binary16.
#include "tensor/dtype.h"

#include <array>

namespace trireme::tensor {
namespace {

struct Row {
  std::string_view name;
  int bits;
  char kind;  // 'f' float, 'i' integer, 'b' boolean
};

constexpr std::array<Row, kDTypeCount> kRows{{
    {"f32", 32, 'f'},       {"f64", 64, 'f'},     {"f16", 16, 'f'},       {"bf16", 16, 'f'},
    {"i8", 8, 'i'},         {"u8", 8, 'i'},       {"i16", 16, 'i'},       {"u16", 16, 'i'},
    {"i32", 32, 'i'},       {"u32", 32, 'i'},     {"i64", 64, 'i'},       {"u64", 64, 'i'},
    {"bool", 8, 'b'},       {"f8e4m3fn", 8, 'f'}, {"f8e4m3fnuz", 8, 'f'}, {"f8e5m2", 8, 'f'},
    {"f8e5m2fnuz", 8, 'f'}, {"f8e8m0", 8, 'f'},   {"i4", 4, 'i'},         {"u4", 4, 'i'},
    {"f4e2m1", 4, 'f'},     {"i2", 2, 'i'},       {"u2", 2, 'i'},
}};

const Row& row(DType type) { return kRows[static_cast<size_t>(type)]; }

}  // namespace

int bits_of(DType type) { return row(type).bits; }
std::string_view name_of(DType type) { return row(type).name; }
bool is_float(DType type) { return row(type).kind == 'f'; }
bool is_integer(DType type) { return row(type).kind == 'i'; }

DType dtype_from_name(std::string_view name) {
  for (size_t i = 0; i < kRows.size(); ++i) {
    if (kRows[i].name == name) return static_cast<DType>(i);
  }
  base::fail_invalid("unknown element type '", name, "'");
}

uint16_t f32_to_f16_bits(float x) {
  const uint32_t u = std::bit_cast<uint32_t>(x);
  const uint16_t sign = static_cast<uint16_t>((u >> 16) & 0x8000u);
  const uint32_t magnitude = u & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu));
  if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);  // rounds to 65536 or more
  if (magnitude < 0x38800000u) {
    // Subnormal results: adding 0.5 as a float aligns the result's last bit with 2^-24, so the addition
    // rounds.
    const float aligned = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(aligned) - 0x3f000000u));
  }
  const uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u) - 0x38000000u;
  return static_cast<uint16_t>(sign | (rounded >> 13));
}

float f16_bits_to_f32(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1fu;
  const uint32_t mantissa = bits & 0x3ffu;
  if (exponent == 0x1f) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
  if (exponent != 0) return std::bit_cast<float>(sign | ((exponent + 112u) << 23) | (mantissa << 13));
  const float tiny = static_cast<float>(mantissa) * 0x1p-24f;
  return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(tiny));
}

}  // namespace trireme::tensor
