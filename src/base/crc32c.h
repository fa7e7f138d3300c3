// CRC-32C (Castagnoli): the checksum of TFRecord files, TensorBoard event files and checkpoints.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace trireme::base {

/// The checksum of `bytes`; `so_far` is the checksum of what came before, so that pieces may be added in
/// turn. Uses the processor's instruction where it has one (about 8 GB/s), else tables (about 1 GB/s).
/// Source: RFC 3720, appendix B.4.
uint32_t crc32c(std::span<const std::byte> bytes, uint32_t so_far = 0);
uint32_t crc32c(std::string_view bytes, uint32_t so_far = 0);

/// The form that TFRecord framing stores: rotated and offset, since a checksum of data that holds its own
/// checksum is weak.
constexpr uint32_t masked_crc32c(uint32_t crc) { return (crc >> 15 | crc << 17) + 0xa282ead8u; }

}  // namespace trireme::base
