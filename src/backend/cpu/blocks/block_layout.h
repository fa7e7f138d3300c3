// Weights in block formats as products read them: sixteen rows side by side, so that a vector holds the same
// columns of all of them. Nothing is widened: the bytes are those of the file, but for scales of 6 bits,
// which take 8.
#pragma once

#include <cstdint>

namespace trireme::cpu {

/// Rows of a group, and columns of a unit: the least that is unpacked together.
inline constexpr int64_t kGroupRows = 16, kUnit = 32;

enum class BlockScales : uint8_t {
  own,      ///< f16 for each unit
  power,    ///< a byte e for each unit: 2^(e - 128)
  bytes,    ///< unsigned bytes for each part, times the block's f16
  signs,    ///< signed bytes, times the block's f16
  nibbles,  ///< the scale in the low half of a byte, the least weight in the high half
  floats,   ///< f32 for each block, and a signed byte: the code that stands for no weight, less `zero`
};
enum class BlockTable : uint8_t { none, iq4, mxfp4 };
enum class BlockFloats : uint8_t { none, bf16, f16 };

/// weight = scale (code - zero) + least. A block of 16 rows is
///   scale f16 [16] (power: u8 [16]; floats: f32 [16], zero i8 [16]), least f16 [16] where one is stored,
///   bytes [parts, 16] of scales, then of leasts (units > 1 only; nibbles: one byte for both),
///   codes [units][bits][64]: planes of 4, 2 and 1 bits, or of whole bytes, most first.
/// A plane's vector holds 4 columns of 16 rows, byte 4 r + c those of row r: of 4 bits, vector v has columns
/// 4 v + c in its low halves and 16 + 4 v + c in its high ones; of 2 bits, columns 4 (v + 2 j) + c at bit
/// 2 j; of 1 bit, columns 4 j + c at bit j. Floats of 16 bits stay row by row, as files have them: nothing is
/// packed, and processes share the pages of one file.
struct BlockLayout {
  int bits = 4;   ///< of a code
  int units = 1;  ///< of a block
  int part = 32;  ///< weights that share a scale
  BlockScales scales = BlockScales::own;
  bool has_least = false;
  bool subtracts = false;  ///< leasts are stored with the opposite sign
  int zero = 0;            ///< the code, or number of the table, that stands for no weight
  BlockTable table = BlockTable::none;
  BlockFloats floats = BlockFloats::none;

  constexpr bool is_floats() const { return floats != BlockFloats::none; }
  constexpr int parts() const { return units * static_cast<int>(kUnit) / part; }
  constexpr int64_t scale_bytes() const {
    return scales == BlockScales::power ? 16 : scales == BlockScales::floats ? 64 : 32;
  }
  constexpr int64_t heads_bytes() const {
    return scale_bytes() + (scales == BlockScales::floats ? 16 : has_least ? 32 : 0);
  }
  /// Whether parts of a block have scales of their own.
  constexpr bool has_parts() const { return units > 1 && scales != BlockScales::floats; }
  constexpr int64_t part_bytes() const {
    if (!has_parts()) return 0;
    return 16 * parts() * (has_least && scales != BlockScales::nibbles ? 2 : 1);
  }
  constexpr int64_t unit_bytes() const { return 64 * bits; }
  constexpr int64_t codes_at() const { return heads_bytes() + part_bytes(); }
  constexpr int64_t bytes() const {
    return is_floats() ? 64 * kGroupRows : codes_at() + units * unit_bytes();
  }
  /// Of a code of a row of x at most: rows that meet bf16 may be floats in another order.
  constexpr int64_t code_bytes() const { return is_floats() ? 4 : 1; }
  constexpr int64_t weights() const { return units * kUnit; }
  /// Codes, or numbers of the table, of more than 6 bits.
  constexpr bool is_wide() const { return bits == 8 || table == BlockTable::iq4; }
};

/// Numbers of the tables plus their layout's zero.
inline constexpr uint8_t kIq4Table[16] = {1,   24,  45,  63,  79,  93,  106, 118,
                                          129, 141, 153, 166, 181, 197, 217, 241};
inline constexpr uint8_t kMxfp4Table[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};

inline constexpr BlockLayout kBlockLayouts[] = {
    {.bits = 4, .zero = 8},          // q4_0
    {.bits = 4, .has_least = true},  // q4_1
    {.bits = 5, .zero = 16},         // q5_0
    {.bits = 5, .has_least = true},  // q5_1
    {.bits = 8, .zero = 128},        // q8_0
    {.bits = 2, .units = 8, .part = 16, .scales = BlockScales::nibbles, .has_least = true, .subtracts = true},
    {.bits = 3, .units = 8, .part = 16, .scales = BlockScales::signs, .zero = 4},  // q3_k
    {.bits = 4, .units = 8, .part = 32, .scales = BlockScales::bytes, .has_least = true, .subtracts = true},
    {.bits = 5, .units = 8, .part = 32, .scales = BlockScales::bytes, .has_least = true, .subtracts = true},
    {.bits = 6, .units = 8, .part = 16, .scales = BlockScales::signs, .zero = 32},      // q6_k
    {.bits = 4, .zero = 128, .table = BlockTable::iq4},                                 // iq4_nl
    {.bits = 4, .scales = BlockScales::power, .zero = 12, .table = BlockTable::mxfp4},  // mxfp4
    // int4_g32, int4_g128, int8_g32, int8_g128: scale (code - zero) with scale zero as the least weight.
    {.bits = 4, .scales = BlockScales::floats, .has_least = true, .subtracts = true},
    {.bits = 4, .units = 4, .scales = BlockScales::floats, .has_least = true, .subtracts = true},
    {.bits = 8, .scales = BlockScales::floats, .has_least = true, .subtracts = true, .zero = 128},
    {.bits = 8, .units = 4, .scales = BlockScales::floats, .has_least = true, .subtracts = true, .zero = 128},
    {.bits = 16, .floats = BlockFloats::bf16},
    {.bits = 16, .floats = BlockFloats::f16},
};
inline constexpr int kBlockLayoutCount = static_cast<int>(sizeof kBlockLayouts / sizeof kBlockLayouts[0]);

/// Index of the layout of floats of 16 bits.
constexpr int float_format(BlockFloats floats) {
  int format = 0;
  while (kBlockLayouts[format].floats != floats) ++format;
  return format;
}

}  // namespace trireme::cpu
