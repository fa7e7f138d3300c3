// Products of bf16 rows with bf16 weights, compiled for AVX-512 with dot products of bf16; reached only
// through the table, after a run-time check of the processor.
#include "backend/cpu/blocks/block_tiles.h"
#include "backend/cpu/tiles/dense_bf16.h"
#include "backend/cpu/tiles/dense_simd.h"
#include "tensor/half.h"

// Clang 16, which builds the fuzz targets, crashes on these intrinsics, so its binaries widen to f32.
#if defined(__x86_64__) && (!defined(__clang__) || __clang_major__ > 16)

// GCC 12 warns of the deliberately undefined operands inside its own AVX-512 intrinsics.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
// Of the shared vocabulary, only what these products need is used here.
#pragma GCC diagnostic ignored "-Wunused-function"

#define TRIREME_BF16 1

TRIREME_TARGET_BF16_BEGIN
namespace trireme::cpu::avx512_bf16 {
namespace {

// First the vocabulary of vector types, then the templates that use it.
#include "backend/cpu/tiles/dense_simd_avx512.inc"

#include "backend/cpu/blocks/block_simd_avx512.inc"

#include "backend/cpu/blocks/float_tile.inc"

constexpr BlockKernels make_bf16_kernels() {
  BlockKernels table{};
  fill_floats<float_format(BlockFloats::bf16)>(table);
  return table;
}

constexpr BlockKernels kTable = make_bf16_kernels();

}  // namespace
}  // namespace trireme::cpu::avx512_bf16
TRIREME_TARGET_END

#undef TRIREME_BF16

namespace trireme::cpu {

const BlockKernels* block_kernels_bf16() {
  return bf16_kernels() == nullptr ? nullptr : &avx512_bf16::kTable;
}

}  // namespace trireme::cpu

#else

namespace trireme::cpu {

const BlockKernels* block_kernels_bf16() { return nullptr; }

}  // namespace trireme::cpu

#endif
