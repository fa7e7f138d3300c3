// The block formats of GGUF files and of quantized checkpoints: a few neighbouring weights of a row with
// their scales, in whole bytes. docs/formats.md says which there are.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace trireme::tensor {

/// One format. A matrix [n, k] in it is bytes [n, row_bytes(k)], the blocks of a row side by side: numbers
/// are little-endian, scales f16 in those of GGUF. k is a multiple of `weights`. All fields are constant for
/// ever.
struct BlockFormat {
  std::string_view name;  ///< "q4_0": GGUF's name in small letters
  int gguf_type;          ///< the number by which GGUF files name it as blocks; -1: they do not
  int64_t weights;        ///< of a block: 32, 128 or 256
  int64_t bytes;          ///< of a block

  /// `count` blocks -> [count, weights]. Any bytes are some numbers, NaN and infinity among them. Equal, bit
  /// for bit, to `dequantize` of the Python package gguf, but for the bits inside a NaN.
  void (*decode)(const uint8_t* blocks, int64_t count, float* out);
  /// [count, weights] -> `count` blocks. `importance` [weights] or null: how much each weight's squared error
  /// counts, in formats whose scales are searched for (q2_k to q6_k, iq4_nl); others do not read it. Without
  /// it equal to `quantize` of the package gguf 0.19 bit for bit where that has one (q8_0, q4_0, q4_1, q5_0,
  /// q5_1, mxfp4). Numbers that are not finite have no code: their blocks are valid and not near them.
  void (*encode)(const float* values, int64_t count, uint8_t* blocks, const float* importance);

  /// Floats of 16 bits, without scales.
  bool is_floats() const { return name == "bf16" || name == "f16"; }
  int64_t row_bytes(int64_t k) const { return k / weights * bytes; }
  /// Depth of rows of so many bytes.
  int64_t depth(int64_t of_bytes) const { return of_bytes / bytes * weights; }
};

/// The formats of GGUF, by its numbers.
std::span<const BlockFormat> block_formats();

/// They, then what weights of quantized checkpoints become under products: "int4_g32", "int4_g128",
/// "int8_g32" and "int8_g128". A block is its scale f32, its zero point i8, then codes: of 4 bits, 32 in 16
/// bytes, byte i holding those of weights i (low half) and i + 16; of 8 bits with their sign.
/// weight = scale (code - zero). Last "bf16" and "f16": 32 such floats without a scale, so that a matrix of
/// them is one in blocks as it lies.
std::span<const BlockFormat> all_block_formats();

/// Of GGUF; null for a name, or a number, that none has.
const BlockFormat* find_block_format(std::string_view name);
const BlockFormat* find_block_format_by_gguf(int type);

/// Of all formats. Throws invalid_argument that lists the known names.
const BlockFormat& need_block_format(std::string_view name);

/// The sixteen numbers that a code of iq4_nl stands for, and those of mxfp4 doubled.
inline constexpr int8_t kIq4Values[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                          1,    13,   25,  38,  53,  69,  89,  113};
inline constexpr int8_t kMxfp4Values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

}  // namespace trireme::tensor
