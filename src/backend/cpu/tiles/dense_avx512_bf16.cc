// The bf16 product tiles compiled for AVX-512 with bf16; reached only after a run-time check.
#include "backend/cpu/tiles/dense_bf16.h"
#include "backend/cpu/tiles/dense_simd.h"

// Clang 16, which builds the fuzz targets, crashes on these intrinsics, so its binaries use the f32 tiles.
#if defined(__x86_64__) && (!defined(__clang__) || __clang_major__ > 16)

// GCC 12 warns of the deliberately undefined operands inside its own AVX-512 intrinsics.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
// Of the shared vocabulary, only the tiles are used here.
#pragma GCC diagnostic ignored "-Wunused-function"

#define TRIREME_BF16 1

TRIREME_TARGET_BF16_BEGIN
namespace trireme::cpu::avx512_bf16 {
namespace {

// First the vocabulary of vector types, then the templates that use it.
#include "backend/cpu/tiles/dense_simd_avx512.inc"

#include "backend/cpu/tiles/gemm_kernel.inc"

#include "backend/cpu/tiles/bf16_rows.inc"

constexpr Bf16Kernels make_kernels() {
  Bf16Kernels kernels{};
  kernels.tiles.isa = Isa::avx512;
  kernels.tiles.tile_rows = kTileRows;
  kernels.tiles.width = kW;
  kernels.tiles.panel = 2 * kW;
  fill_tiles<1, 1>(kernels.tiles);
  fill_tiles<2, 1>(kernels.tiles);
  kernels.tiles.transpose = transpose_rows;
  kernels.interleave = interleave;
  kernels.interleave_panels = interleave_panels;
  kernels.interleave_tiles = interleave_tiles;
  kernels.widen = widen;
  kernels.narrow = narrow;
  kernels.add = add;
  return kernels;
}

constexpr Bf16Kernels kKernels = make_kernels();

}  // namespace
}  // namespace trireme::cpu::avx512_bf16
TRIREME_TARGET_END

#undef TRIREME_BF16

namespace trireme::cpu {

const Bf16Kernels* bf16_kernels() {
  static const bool usable = best_isa() >= Isa::avx512 && __builtin_cpu_supports("avx512bf16");
  static const Bf16Kernels kernels = [] {
    Bf16Kernels best = avx512_bf16::kKernels;
    take_matrix_tiles(best);
    return best;
  }();
  return usable ? &kernels : nullptr;
}

}  // namespace trireme::cpu

#else

namespace trireme::cpu {

const Bf16Kernels* bf16_kernels() { return nullptr; }

}  // namespace trireme::cpu

#endif
