// Products with weights in blocks in plain vector extensions, for any processor; also chooses the table of a
// level.
#include "backend/cpu/blocks/block_tiles.h"

#include <algorithm>

#include "backend/cpu/tiles/dense_simd.h"
#include "tensor/half.h"

namespace trireme::cpu::portable {
namespace {

// First the vocabulary of vector types, then the templates that use it.
#include "backend/cpu/tiles/dense_simd_portable.inc"

#include "backend/cpu/blocks/block_simd_portable.inc"
#include "backend/cpu/blocks/float_tile.inc"

#include "backend/cpu/blocks/block_tile.inc"

constexpr BlockKernels kTable = make_block_kernels();

}  // namespace
}  // namespace trireme::cpu::portable

namespace trireme::cpu {

const BlockKernels& block_kernels_portable() { return portable::kTable; }

namespace {

#if defined(__x86_64__)
/// The kernels of AVX-512: products of bytes by VNNI, and of bf16 those that the processor has beyond it.
const BlockKernels& vnni_and_bf16() {
  static const BlockKernels kernels = [] {
    BlockKernels all = block_kernels_avx512();
    const BlockKernels& bytes = block_kernels_avx512_vnni();
    const auto take = [&all](const BlockKernels& from, int format) {
      std::copy_n(from.rounded[format], kBlockTileHeights, all.rounded[format]);
      std::copy_n(from.rounded_pair[format], kBlockTileHeights, all.rounded_pair[format]);
      all.rounded_row[format] = from.rounded_row[format];
    };
    for (int format = 0; format < kBlockLayoutCount; ++format) {
      if (!kBlockLayouts[format].is_floats()) take(bytes, format);
    }
    if (const BlockKernels* dots = block_kernels_bf16()) take(*dots, float_format(BlockFloats::bf16));
    return all;
  }();
  return kernels;
}
#endif

}  // namespace

const BlockKernels& block_kernels(Isa isa) {
#if defined(__x86_64__)
  if (isa >= Isa::avx512_vnni) return vnni_and_bf16();
  if (isa == Isa::avx512) return block_kernels_avx512();
  if (isa == Isa::avx2) return block_kernels_avx2();
#endif
  (void)isa;
  return block_kernels_portable();
}

}  // namespace trireme::cpu
