// Products with weights in blocks, compiled for AVX2; reached only through the table, after a run-time check
// of the processor.
#include "backend/cpu/blocks/block_tiles.h"
#include "backend/cpu/tiles/dense_simd.h"
#include "tensor/half.h"

#if defined(__x86_64__)

TRIREME_TARGET_AVX2_BEGIN
namespace trireme::cpu::avx2 {
namespace {

// First the vocabulary of vector types, then the templates that use it.
#include "backend/cpu/tiles/dense_simd_avx2.inc"

#include "backend/cpu/blocks/block_simd_avx2.inc"
#include "backend/cpu/blocks/float_tile.inc"

#include "backend/cpu/blocks/block_tile.inc"

constexpr BlockKernels kTable = make_block_kernels();

}  // namespace
}  // namespace trireme::cpu::avx2
TRIREME_TARGET_END

namespace trireme::cpu {

const BlockKernels& block_kernels_avx2() { return avx2::kTable; }

}  // namespace trireme::cpu

#endif
