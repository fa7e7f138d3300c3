// The 8-bit product tiles on the matrix unit of AMX; reached only through the table, after a run-time check
// of the processor. Packed panels of weights, groups of four along k, are what the unit takes as its right
// operand. Sums are exact, so results are those of the other levels.
// Source of the instructions: Intel 64 and IA-32 Architectures Optimization Reference Manual, chapter 20.
#include "backend/cpu/tiles/amx_tiles.h"
#include "backend/cpu/tiles/dense_kernels.h"
#include "backend/cpu/tiles/dense_simd.h"
#include "backend/cpu/tiles/qgemm_kernels.h"

#if defined(__x86_64__)

// GCC 12 takes the deliberate "undefined" operand inside its own AVX-512 intrinsics for a mistake of ours.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"

#define TRIREME_VNNI 1

TRIREME_TARGET_AMX_BEGIN
namespace trireme::cpu::amx {
namespace {

// Vocabulary, then templates.
#include "backend/cpu/tiles/dense_simd_avx512.inc"

#include "backend/cpu/tiles/qgemm_kernel.inc"

/// Groups of four bytes in the row of a tile.
constexpr int64_t kChunk = 16;
/// Fewer rows than this are left to vectors: the unit loads a panel of weights for whatever rows there are.
constexpr int kLeastRows = 4;

/// Activations of one chunk, copied side by side: rows that do not lie a constant distance apart, and signed
/// bytes, which become unsigned by flipping their top bits. Two, so that a copy reaches the cache while the
/// one before it is multiplied.
struct alignas(64) StagedRows {
  uint8_t bytes[2][16][64];
};

template <bool kSigned>
TRIREME_INLINE void stage_rows(const int32_t* const* rows, int count, int64_t at, int64_t groups,
                               uint8_t (&to)[16][64]) {
  const auto valid = static_cast<__mmask16>((1u << groups) - 1);
  const VI flip = viset1(static_cast<int32_t>(0x80808080u));
  for (int r = 0; r < count; ++r) {
    const VI x = _mm512_maskz_loadu_epi32(valid, rows[r] + at);
    vistore(reinterpret_cast<int32_t*>(to[r]), kSigned ? vixor(x, flip) : x);
  }
}

/// The bytes from each row to the next one; 0 where they differ.
TRIREME_INLINE int64_t even_distance(const int32_t* const* rows, int count) {
  const auto at = [&](int r) { return reinterpret_cast<intptr_t>(rows[r]); };
  const int64_t distance = at(1) - at(0);
  for (int r = 2; r < count; ++r) {
    if (at(r) - at(r - 1) != distance) return 0;
  }
  return distance;
}

/// Tiles 0 and 1 are the sums of two vectors of columns; 2 and 3 the operands of a whole chunk, 4 and 5 those
/// of the last one of a segment, which may be shorter.
template <int NV, bool kTail>
TRIREME_INLINE void multiply_chunk(const void* a, int64_t distance, const int32_t* b) {
  constexpr int64_t kPanelBytes = NV * kW * 4;
  if constexpr (kTail) {
    _tile_loadd(4, a, distance);
    _tile_loadd(5, b, kPanelBytes);
    _tile_dpbusd(0, 4, 5);
    if constexpr (NV == 2) {
      _tile_loadd(5, b + kW, kPanelBytes);
      _tile_dpbusd(1, 4, 5);
    }
  } else {
    _tile_loadd(2, a, distance);
    _tile_loadd(3, b, kPanelBytes);
    _tile_dpbusd(0, 2, 3);
    if constexpr (NV == 2) {
      _tile_loadd(3, b + kW, kPanelBytes);
      _tile_dpbusd(1, 2, 3);
    }
  }
}

/// One segment in place. Returns the weights behind it.
template <int NV>
TRIREME_INLINE const int32_t* multiply_in_place(const int32_t* first, int64_t distance, int64_t length,
                                                const int32_t* b) {
  int64_t k = 0;
  for (; k + kChunk <= length; k += kChunk, b += kChunk * NV * kW)
    multiply_chunk<NV, false>(first + k, distance, b);
  if (k == length) return b;
  multiply_chunk<NV, true>(first + k, distance, b);
  return b + (length - k) * NV * kW;
}

/// One segment by copies.
template <int NV, bool kSigned>
TRIREME_INLINE const int32_t* multiply_copies(const int32_t* const* rows, int count, int64_t length,
                                              const int32_t* b, StagedRows& staged) {
  const auto groups_at = [&](int64_t k) { return length - k < kChunk ? length - k : kChunk; };
  stage_rows<kSigned>(rows, count, 0, groups_at(0), staged.bytes[0]);
  int odd = 0;
  for (int64_t k = 0; k < length; odd ^= 1) {
    const int64_t groups = groups_at(k), next = k + groups;
    if (next < length) stage_rows<kSigned>(rows, count, next, groups_at(next), staged.bytes[odd ^ 1]);
    tiles_see_stores();
    if (groups == kChunk) {
      multiply_chunk<NV, false>(staged.bytes[odd], 64, b);
    } else {
      multiply_chunk<NV, true>(staged.bytes[odd], 64, b);
    }
    b += groups * NV * kW;
    k = next;
  }
  return b;
}

template <int MR, int NV, bool kSigned>
void matrix_rows(const QuantTile& t) {
  const auto tail = static_cast<int>(t.length % kChunk);
  TileShapes shapes;
  for (int j = 0; j < NV; ++j) shapes.set(j, MR, 64);
  shapes.set(2, MR, 64);
  shapes.set(3, kChunk, 64);
  if (tail > 0) {
    shapes.set(4, MR, 4 * tail);
    shapes.set(5, tail, 64);
  }
  tiles_see_stores();
  _tile_loadconfig(&shapes);
  _tile_zero(0);
  if constexpr (NV == 2) _tile_zero(1);
  StagedRows staged;
  const int32_t* b = t.b;
  for (int s = 0; s < t.segments; ++s) {
    const int32_t* const* rows = t.rows + s * kRowSlots;
    const int64_t distance = kSigned ? 0 : even_distance(rows, MR);
    b = distance != 0 ? multiply_in_place<NV>(rows[0], distance, t.length, b)
                      : multiply_copies<NV, kSigned>(rows, MR, t.length, b, staged);
  }
  alignas(64) int32_t sums[NV][MR][kW];
  _tile_stored(0, sums[0], 64);
  if constexpr (NV == 2) _tile_stored(1, sums[1], 64);
  _tile_release();
  VI acc[MR][NV];
#pragma GCC unroll 32
  for (int i = 0; i < MR * NV; ++i) acc[i / NV][i % NV] = viload(sums[i % NV][i / NV]);
  quant_finish<MR, NV>(t, acc);
}

template <int NV, int MR>
void fill_matrix_rows(QuantKernels& table) {
  if constexpr (MR <= kTileRows) {
    table.rows[0][NV - 1][MR - 1] = matrix_rows<MR, NV, false>;
    table.rows[1][NV - 1][MR - 1] = matrix_rows<MR, NV, true>;
    fill_matrix_rows<NV, MR + 1>(table);
  }
}

}  // namespace
}  // namespace trireme::cpu::amx
TRIREME_TARGET_END

#undef TRIREME_VNNI

namespace trireme::cpu {

const QuantKernels& quant_kernels_amx() {
  static const QuantKernels table = [] {
    QuantKernels all = quant_kernels_avx512_vnni();
    amx::fill_matrix_rows<1, amx::kLeastRows>(all);
    amx::fill_matrix_rows<2, amx::kLeastRows>(all);
    all.rows_from_bytes = 64;
    return all;
  }();
  return table;
}

}  // namespace trireme::cpu

#endif
