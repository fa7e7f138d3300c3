// The dense kernels in plain vector extensions, for any processor; also chooses the table of a level.
#include "backend/cpu/tiles/dense_kernels.h"
#include "backend/cpu/tiles/dense_simd.h"
#include "backend/cpu/tiles/qgemm_kernels.h"

namespace trireme::cpu::portable {
namespace {

// The order matters: vocabulary of vector types, templates, table.
#include "backend/cpu/tiles/dense_simd_portable.inc"

#include "backend/cpu/tiles/dense_activation.inc"
#include "backend/cpu/tiles/depthwise_kernel.inc"
#include "backend/cpu/tiles/gemm_kernel.inc"
#include "backend/cpu/tiles/pool_kernel.inc"
#include "backend/cpu/tiles/qgemm_kernel.inc"

#include "backend/cpu/tiles/dense_table.inc"

constexpr DenseKernels kTable = make_dense_kernels(Isa::portable);
constexpr QuantKernels kQuantTable = make_quant_kernels<false>();

}  // namespace
}  // namespace trireme::cpu::portable

namespace trireme::cpu {

const DenseKernels& dense_kernels_portable() { return portable::kTable; }
const QuantKernels& quant_kernels_portable() { return portable::kQuantTable; }

const DenseKernels& dense_kernels(Isa isa) {
#if defined(__x86_64__)
  if (isa >= Isa::avx512) return dense_kernels_avx512();
  if (isa == Isa::avx2) return dense_kernels_avx2();
#endif
  (void)isa;
  return dense_kernels_portable();
}

const QuantKernels& quant_kernels(Isa isa) {
#if defined(__x86_64__)
  if (isa == Isa::amx) return quant_kernels_amx();
  if (isa == Isa::avx512_vnni) return quant_kernels_avx512_vnni();
  if (isa == Isa::avx512) return quant_kernels_avx512();
  if (isa == Isa::avx2) return quant_kernels_avx2();
#endif
  (void)isa;
  return quant_kernels_portable();
}

}  // namespace trireme::cpu
