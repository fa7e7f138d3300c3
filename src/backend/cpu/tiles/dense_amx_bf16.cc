// The bf16 product tiles on the matrix unit of AMX; reached only after a run-time check of the processor. The
// unit sums the products of a chunk of 16 pairs in its own order, which the depth alone decides: a result has
// the same bits whatever its neighbours are, but not those of the AVX-512 tiles.
// Source of the instructions: Intel 64 and IA-32 Architectures Optimization Reference Manual, chapter 20.
#include "backend/cpu/tiles/amx_tiles.h"
#include "backend/cpu/tiles/dense_bf16.h"
#include "backend/cpu/tiles/dense_simd.h"

// As dense_avx512_bf16.cc: clang 16 has no such tiles.
#if defined(__x86_64__) && (!defined(__clang__) || __clang_major__ > 16)
#include <cpuid.h>

// GCC 12 takes the deliberate "undefined" operand inside its own AVX-512 intrinsics for a mistake of ours.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"

TRIREME_TARGET_AMX_BEGIN
namespace trireme::cpu::amx_bf16 {
namespace {

// Vocabulary.
#include "backend/cpu/tiles/dense_simd_avx512.inc"

/// Pairs along k in the row of a tile.
constexpr int64_t kChunk = 16;

/// A packed tile of rows [pairs, 16], chunk by chunk to [16, pairs of the chunk], in place.
void turn_chunks(float* tile, int64_t depth) {
  for (int64_t k = 0; k < depth; k += kChunk, tile += kChunk * kRowSlots) {
    const int64_t pairs = depth - k < kChunk ? depth - k : kChunk;
    alignas(64) float from[kChunk * kRowSlots];
    std::memcpy(from, tile, static_cast<size_t>(pairs * kRowSlots) * sizeof(float));
    if (pairs == kChunk) {
      const float* rows[kRowSlots];
      for (int i = 0; i < kRowSlots; ++i) rows[i] = from + i * kRowSlots;
      for (int64_t at = 0; at < kChunk; at += 4) {
        VF out[4];
        vtranspose4(rows, at, out);
        for (int i = 0; i < 4; ++i) vstore(tile + (at + i) * kRowSlots, out[i]);
      }
    } else {
      for (int64_t r = 0; r < kRowSlots; ++r) {
        for (int64_t i = 0; i < pairs; ++i) tile[r * pairs + i] = from[i * kRowSlots + r];
      }
    }
  }
}

/// Tiles 0 and 1 are the sums of two vectors of columns; 2 and 3 the operands of a whole chunk, 4 and 5 those
/// of the last one.
template <int MR, int NV>
void matrix_tile(const GemmTile& t) {
  constexpr int64_t kPanelBytes = NV * kW * 4;
  const auto tail = static_cast<int>(t.k % kChunk);
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
  const float* a = t.a;
  const float* b = t.b;
  for (int64_t k = 0; k + kChunk <= t.k; k += kChunk, a += kChunk * kRowSlots, b += kChunk * NV * kW) {
    _tile_loadd(2, a, 64);
    _tile_loadd(3, b, kPanelBytes);
    _tile_dpbf16ps(0, 2, 3);
    if constexpr (NV == 2) {
      _tile_loadd(3, b + kW, kPanelBytes);
      _tile_dpbf16ps(1, 2, 3);
    }
  }
  if (tail > 0) {
    _tile_loadd(4, a, 4 * tail);
    _tile_loadd(5, b, kPanelBytes);
    _tile_dpbf16ps(0, 4, 5);
    if constexpr (NV == 2) {
      _tile_loadd(5, b + kW, kPanelBytes);
      _tile_dpbf16ps(1, 4, 5);
    }
  }
  alignas(64) float sums[NV][MR][kW];
  _tile_stored(0, sums[0], 64);
  if constexpr (NV == 2) _tile_stored(1, sums[1], 64);
  _tile_release();
#pragma GCC unroll 2
  for (int j = 0; j < NV; ++j) {
    const int left = t.n - j * kW;
    if (left <= 0) break;
    const bool whole = left >= kW;
    VF bias = vzero();
    if (t.bias != nullptr) bias = whole ? vload(t.bias + j * kW) : vload_n(t.bias + j * kW, left);
#pragma GCC unroll 16
    for (int r = 0; r < MR; ++r) {
      float* c = t.c + r * t.ldc + j * kW;
      VF sum = vload(sums[j][r]);
      if (t.bias != nullptr) sum = vadd(sum, bias);
      if (t.accumulate) sum = vadd(sum, whole ? vload(c) : vload_n(c, left));
      whole ? vstore(c, sum) : vstore_n(c, sum, left);
    }
  }
}

template <int NV, int MR>
void fill_matrix_tiles(DenseKernels& table) {
  if constexpr (MR <= kTileRows) {
    table.gemm_packed[NV - 1][MR - 1] = matrix_tile<MR, NV>;
    fill_matrix_tiles<NV, MR + 1>(table);
  }
}

}  // namespace
}  // namespace trireme::cpu::amx_bf16
TRIREME_TARGET_END

namespace trireme::cpu {
namespace {

bool has_bf16_tiles() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return best_isa() >= Isa::amx && __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (d >> 22 & 1) != 0;
}

}  // namespace

void take_matrix_tiles(Bf16Kernels& kernels) {
  if (!has_bf16_tiles()) return;
  amx_bf16::fill_matrix_tiles<1, 1>(kernels.tiles);
  amx_bf16::fill_matrix_tiles<2, 1>(kernels.tiles);
  kernels.turn = amx_bf16::turn_chunks;
}

}  // namespace trireme::cpu

#endif
