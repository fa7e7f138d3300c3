// Products with weights in blocks in plain vector extensions, for any processor; also chooses the table of a
// level.
#include "backend/cpu/blocks/block_tiles.h"
#include "backend/cpu/tiles/dense_simd.h"
#include "tensor/half.h"

namespace trireme::cpu::portable {
namespace {

// First the vocabulary of vector types, then the templates that use it.
#include "backend/cpu/tiles/dense_simd_portable.inc"

#include "backend/cpu/blocks/block_simd_portable.inc"
#include "backend/cpu/blocks/block_tile.inc"

constexpr BlockKernels kTable = make_block_kernels();

}  // namespace
}  // namespace trireme::cpu::portable

namespace trireme::cpu {

const BlockKernels& block_kernels_portable() { return portable::kTable; }

const BlockKernels& block_kernels(Isa isa) {
#if defined(__x86_64__)
  if (isa >= Isa::avx512_vnni) return block_kernels_avx512_vnni();
  if (isa == Isa::avx512) return block_kernels_avx512();
  if (isa == Isa::avx2) return block_kernels_avx2();
#endif
  (void)isa;
  return block_kernels_portable();
}

}  // namespace trireme::cpu
