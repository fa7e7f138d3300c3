// Products with weights in blocks, compiled for AVX-512; reached only through the table, after a run-time
// check of the processor.
#include "backend/cpu/blocks/block_tiles.h"
#include "backend/cpu/tiles/dense_simd.h"
#include "tensor/half.h"

#if defined(__x86_64__)

// GCC 12 warns of the deliberately undefined operands inside its own AVX-512 intrinsics.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"

TRIREME_TARGET_AVX512_BEGIN
namespace trireme::cpu::avx512 {
namespace {

// First the vocabulary of vector types, then the templates that use it.
#include "backend/cpu/tiles/dense_simd_avx512.inc"

#include "backend/cpu/blocks/block_simd_avx512.inc"
#include "backend/cpu/blocks/float_tile.inc"

#include "backend/cpu/blocks/block_tile.inc"

constexpr BlockKernels kTable = make_block_kernels();

}  // namespace
}  // namespace trireme::cpu::avx512
TRIREME_TARGET_END

namespace trireme::cpu {

const BlockKernels& block_kernels_avx512() { return avx512::kTable; }

}  // namespace trireme::cpu

#endif
