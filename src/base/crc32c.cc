// CRC-32C with the SSE 4.2 instruction, or with eight tables (slicing-by-8, Kounavis & Berry 2005).
#include "base/crc32c.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace trireme::base {
namespace {

constexpr uint32_t kPolynomial = 0x82f63b78u;  // the Castagnoli polynomial, bits reversed

using Tables = std::array<std::array<uint32_t, 256>, 8>;

/// table[k][b] is the contribution of byte b to the CRC when k more bytes follow it.
constexpr Tables make_tables() {
  Tables t{};
  for (uint32_t b = 0; b < 256; ++b) {
    uint32_t crc = b;
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? kPolynomial : 0);
    t[0][b] = crc;
  }
  for (size_t k = 1; k < 8; ++k) {
    for (size_t b = 0; b < 256; ++b) t[k][b] = t[k - 1][b] >> 8 ^ t[0][t[k - 1][b] & 255];
  }
  return t;
}

constexpr Tables kTables = make_tables();

uint64_t load_u64(const std::byte* at) {
  uint64_t word = 0;
  std::memcpy(&word, at, 8);  // little-endian, as on every supported machine
  return word;
}

uint32_t by_tables(const std::byte* at, size_t size, uint32_t crc) {
  for (; size >= 8; at += 8, size -= 8) {
    const uint64_t word = load_u64(at) ^ crc;
    crc = 0;
    for (size_t k = 0; k < 8; ++k) crc ^= kTables[7 - k][word >> 8 * k & 255];
  }
  for (; size > 0; ++at, --size) crc = crc >> 8 ^ kTables[0][(crc ^ static_cast<uint32_t>(*at)) & 255];
  return crc;
}

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) uint32_t by_instruction(const std::byte* at, size_t size, uint32_t crc) {
  uint64_t wide = crc;
  for (; size >= 8; at += 8, size -= 8) wide = _mm_crc32_u64(wide, load_u64(at));
  crc = static_cast<uint32_t>(wide);
  for (; size > 0; ++at, --size) crc = _mm_crc32_u8(crc, static_cast<uint8_t>(*at));
  return crc;
}
#endif

}  // namespace

uint32_t crc32c(std::span<const std::byte> bytes, uint32_t so_far) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("sse4.2")) return ~by_instruction(bytes.data(), bytes.size(), ~so_far);
#endif
  return ~by_tables(bytes.data(), bytes.size(), ~so_far);
}

uint32_t crc32c(std::string_view bytes, uint32_t so_far) {
  return crc32c(std::as_bytes(std::span(bytes.data(), bytes.size())), so_far);
}

}  // namespace trireme::base
