// Packs rows in a block format into groups of sixteen rows; a 32-bit word holds four codes, one per byte.
#include "backend/cpu/blocks/block_pack.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "tensor/blocks/k_parts.h"

namespace trireme::cpu {
namespace {

namespace blocks = tensor::blocks;

/// The 32 codes of a unit in eight words.
using Words = uint32_t[8];

uint32_t word_at(const uint8_t* p, int64_t i) {
  uint32_t word;
  std::memcpy(&word, p + 4 * i, sizeof word);
  return word;
}

/// Spreads four bits to the lowest bits of four bytes.
uint32_t spread(uint32_t bits) { return (bits & 15) * 0x00204081u & 0x01010101u; }

/// Reads the 4-bit codes of a block of 32 at `p`.
void nibbles(const uint8_t* p, Words& q) {
  for (int v = 0; v < 4; ++v) {
    const uint32_t pair = word_at(p, v);
    q[v] = pair & 0x0f0f0f0fu;
    q[v + 4] = pair >> 4 & 0x0f0f0f0fu;
  }
}
void add_fifth_bits(const uint8_t* p, Words& q) {
  const uint32_t bits = word_at(p, 0);
  for (int v = 0; v < 8; ++v) q[v] |= spread(bits >> (4 * v)) << 4;
}
/// Reads 2-bit codes of unit `u` in the order of q2_k; bits_of reads single bits in that of q3_k and q5_k.
uint32_t pairs_of(const uint8_t* p, int u, int v) {
  return word_at(p, u / 4 * 8 + v) >> (2 * (u % 4)) & 0x03030303u;
}
uint32_t bits_of(const uint8_t* p, int u, int v) { return word_at(p, v) >> u & 0x01010101u; }

/// Offset of the codes in a block of a quantized checkpoint, after an f32 scale and a zero point.
constexpr int64_t kGroupCodes = 5;

/// Reads the codes of unit `u` of a block; `format` is the format's index.
void open_unit(int format, const uint8_t* b, int u, Words& q) {
  switch (format) {
    case 0: return nibbles(b + 2, q);
    case 1: return nibbles(b + 4, q);
    case 2: return nibbles(b + 6, q), add_fifth_bits(b + 2, q);
    case 3: return nibbles(b + 8, q), add_fifth_bits(b + 4, q);
    case 4:
      for (int v = 0; v < 8; ++v) q[v] = word_at(b + 2, v) ^ 0x80808080u;
      return;
    case 5:
      for (int v = 0; v < 8; ++v) q[v] = pairs_of(b + blocks::Q2KAt::codes, u, v);
      return;
    case 6:
      for (int v = 0; v < 8; ++v)
        q[v] = pairs_of(b + blocks::Q3KAt::codes, u, v) | bits_of(b + blocks::Q3KAt::high, u, v) << 2;
      return;
    case 7:
      for (int v = 0; v < 8; ++v)
        q[v] = word_at(b + blocks::Q4KAt::codes, u / 2 * 8 + v) >> (4 * (u % 2)) & 0x0f0f0f0fu;
      return;
    case 8:
      for (int v = 0; v < 8; ++v)
        q[v] = (word_at(b + blocks::Q5KAt::codes, u / 2 * 8 + v) >> (4 * (u % 2)) & 0x0f0f0f0fu) |
               bits_of(b + blocks::Q5KAt::high, u, v) << 4;
      return;
    case 9:
      for (int v = 0; v < 8; ++v)
        q[v] = (word_at(b + blocks::Q6KAt::codes, u / 4 * 16 + u % 2 * 8 + v) >> (4 * (u % 4 / 2)) &
                0x0f0f0f0fu) |
               pairs_of(b + blocks::Q6KAt::high, u, v) << 4;
      return;
    case 10: return nibbles(b + 2, q);
    case 11: return nibbles(b + 1, q);
    case 12:
    case 13: return nibbles(b + kGroupCodes + 16 * u, q);
    default:
      for (int v = 0; v < 8; ++v) q[v] = word_at(b + kGroupCodes + 32 * u, v) ^ 0x80808080u;
  }
}

/// Offsets of a block's own scale and minimum in GGUF formats.
struct HeadsAt {
  int64_t scale, least;
};
constexpr HeadsAt kHeads[] = {{0, 0},
                              {0, 2},
                              {0, 0},
                              {0, 2},
                              {0, 0},
                              {blocks::Q2KAt::d, blocks::Q2KAt::dmin},
                              {blocks::Q3KAt::d, 0},
                              {0, 2},
                              {0, 2},
                              {blocks::Q6KAt::d, 0},
                              {0, 0},
                              {0, 0}};

/// The bytes that hold the scale of part `p`, and its minimum where the part has one.
struct PartBytes {
  uint8_t scale = 0, least = 0;
};
PartBytes part_of(int format, const uint8_t* b, int64_t p) {
  switch (format) {
    case 5: return {b[blocks::Q2KAt::scales + p]};
    case 6: return {static_cast<uint8_t>(blocks::signed_scale(b + blocks::Q3KAt::scales, p))};
    case 7:
    case 8: {
      const blocks::ScaleMin own = blocks::scale_min(b + blocks::Q4KAt::scales, p);
      return {static_cast<uint8_t>(own.scale), static_cast<uint8_t>(own.min)};
    }
    default: return {b[blocks::Q6KAt::scales + p]};
  }
}

/// Writes the codes of row `r` of a unit to the planes at `to`.
void put_unit(int bits, const Words& q, int64_t r, uint8_t* to) {
  const auto put = [&](int v, uint32_t word) { std::memcpy(to + 64 * v + 4 * r, &word, sizeof word); };
  if (bits == 8) {
    for (int v = 0; v < 8; ++v) put(v, q[v]);
    return;
  }
  int at = 0, low = 0;
  if (bits >= 4) {
    for (int v = 0; v < 4; ++v) put(v, (q[v] & 0x0f0f0f0fu) | (q[v + 4] & 0x0f0f0f0fu) << 4);
    at = low = 4;
  }
  if (bits == 6 || bits < 4) {
    for (int v = 0; v < 2; ++v) {
      uint32_t word = 0;
      for (int j = 0; j < 4; ++j) word |= (q[v + 2 * j] >> low & 0x03030303u) << (2 * j);
      put(at + v, word);
    }
    at += 2, low += 2;
  }
  if (bits % 2 == 1) {
    uint32_t word = 0;
    for (int v = 0; v < 8; ++v) word |= (q[v] >> low & 0x01010101u) << v;
    put(at, word);
  }
}

void pack_block(const PackedBlocks& m, const uint8_t* b, int64_t r, uint8_t* to) {
  const BlockLayout& l = m.layout();
  if (l.scales == BlockScales::floats) {
    std::memcpy(to + 4 * r, b, 4);
    to[l.scale_bytes() + r] = b[4];
  } else {
    const HeadsAt& heads = kHeads[m.format];
    const bool is_power = l.scales == BlockScales::power;
    std::memcpy(to + (is_power ? 1 : 2) * r, b + heads.scale, is_power ? 1 : 2);
    if (l.has_least) std::memcpy(to + l.scale_bytes() + 2 * r, b + heads.least, 2);
  }
  if (l.has_parts()) {
    uint8_t* parts = to + l.heads_bytes();
    for (int64_t p = 0; p < l.parts(); ++p) {
      const PartBytes own = part_of(m.format, b, p);
      parts[16 * p + r] = own.scale;
      if (l.part_bytes() > 16 * l.parts()) parts[16 * (l.parts() + p) + r] = own.least;
    }
  }
  for (int u = 0; u < l.units; ++u) {
    Words q;
    open_unit(m.format, b, u, q);
    put_unit(l.bits, q, r, to + l.codes_at() + u * l.unit_bytes());
  }
}

/// Reads the code of column `c` of row `r` of a unit.
int code_of(int bits, const uint8_t* unit, int64_t r, int64_t c) {
  const int64_t v = c / 4, at = 4 * r + c % 4;
  if (bits == 8) return unit[64 * v + at];
  int code = 0, low = 0;
  if (bits >= 4) {
    code = unit[64 * (v % 4) + at] >> (v < 4 ? 0 : 4) & 15;
    unit += 256, low = 4;
  }
  if (bits == 6 || bits < 4) {
    code |= (unit[64 * (v % 2) + at] >> (2 * (v / 2)) & 3) << low;
    unit += 128, low += 2;
  }
  if (bits % 2 == 1) code |= (unit[at] >> v & 1) << low;
  return code;
}

/// Scale, minimum and zero point of one part, rounded as the format's decoder does.
struct Step {
  float scale = 0, least = 0;
  int zero = 0;
};
Step step_of(const BlockLayout& l, const uint8_t* block, int64_t r, int64_t part) {
  Step s;
  if (l.scales == BlockScales::power) {
    const uint32_t e = block[r];
    s.scale = std::bit_cast<float>(e < 2 ? uint32_t{0x00200000} << e : (e - 1) << 23);
    return s;
  }
  if (l.scales == BlockScales::floats) {
    std::memcpy(&s.scale, block + 4 * r, sizeof s.scale);
    s.zero = static_cast<int8_t>(block[l.scale_bytes() + r]);
    return s;
  }
  s.scale = blocks::half_at(block + 2 * r);
  if (l.has_least) s.least = blocks::half_at(block + l.scale_bytes() + 2 * r);
  if (l.units == 1) return s;
  const uint8_t* parts = block + l.heads_bytes() + 16 * part + r;
  const bool is_pair = l.scales == BlockScales::nibbles;
  const int scale = l.scales == BlockScales::signs ? static_cast<int8_t>(*parts)
                    : is_pair                      ? *parts & 15
                                                   : *parts;
  s.scale *= static_cast<float>(scale);
  if (l.has_least) s.least *= static_cast<float>(is_pair ? *parts >> 4 : parts[16 * l.parts()]);
  return s;
}

}  // namespace

int block_format_index(const tensor::BlockFormat& format) {
  return static_cast<int>(&format - tensor::all_block_formats().data());
}

int64_t packed_block_bytes(const tensor::BlockFormat& format, int64_t n, int64_t k) {
  const PackedBlocks m{nullptr, block_format_index(format), n, k};
  return m.layout().is_floats() ? 0 : m.groups() * m.group_bytes();
}

PackedBlocks pack_blocks(const BlockRowsOfFile& from, uint8_t* memory, base::ThreadPool& pool) {
  PackedBlocks m{memory, block_format_index(*from.format), from.n, from.k};
  if (m.layout().is_floats()) {
    m.data = from.rows;
    return m;
  }
  const int64_t row_bytes = from.format->row_bytes(m.k), block_bytes = m.layout().bytes();
  pool.for_range(m.groups(), 4, [&](int64_t begin, int64_t end) {
    for (int64_t g = begin; g < end; ++g) {
      uint8_t* group = memory + g * m.group_bytes();
      const int64_t count = std::min(kGroupRows, m.n - g * kGroupRows);
      if (count < kGroupRows) std::memset(group, 0, static_cast<size_t>(m.group_bytes()));
      for (int64_t b = 0; b < m.blocks(); ++b) {
        const uint8_t* block = from.rows + g * kGroupRows * row_bytes + b * from.format->bytes;
        for (int64_t r = 0; r < count; ++r) pack_block(m, block + r * row_bytes, r, group + b * block_bytes);
      }
    }
  });
  return m;
}

void unpack_row(const PackedBlocks& from, int64_t row, float* out) {
  const BlockLayout& l = from.layout();
  if (l.is_floats()) {
    const tensor::BlockFormat& format = tensor::all_block_formats()[static_cast<size_t>(from.format)];
    return format.decode(from.data + row * format.row_bytes(from.k), from.k / format.weights, out);
  }
  const int64_t r = row % kGroupRows;
  const uint8_t* block = from.data + row / kGroupRows * from.group_bytes();
  const uint8_t* table = l.table == BlockTable::iq4 ? kIq4Table : kMxfp4Table;
  for (int64_t b = 0; b < from.blocks(); ++b, block += l.bytes(), out += l.weights()) {
    for (int64_t c = 0; c < l.weights(); ++c) {
      const uint8_t* unit = block + l.codes_at() + c / kUnit * l.unit_bytes();
      int code = code_of(l.bits, unit, r, c % kUnit);
      if (l.table != BlockTable::none) code = table[code];
      const Step s = step_of(l, block, r, c / l.part);
      out[c] = s.scale * static_cast<float>(code - l.zero - s.zero);
      if (l.has_least && l.scales != BlockScales::floats) out[c] += l.subtracts ? -s.least : s.least;
    }
  }
}

}  // namespace trireme::cpu
