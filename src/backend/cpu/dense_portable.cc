// The dense kernels in plain vector extensions, for any processor; also where the levels' tables are chosen.
#include "backend/cpu/dense_kernels.h"
#include "backend/cpu/dense_simd.h"

namespace trireme::cpu {
namespace {

// Vocabulary, templates, table: in this order.
#include "backend/cpu/dense_simd_portable.inc"

#include "backend/cpu/dense_activation.inc"
#include "backend/cpu/depthwise_kernel.inc"
#include "backend/cpu/gemm_kernel.inc"
#include "backend/cpu/pool_kernel.inc"

#include "backend/cpu/dense_table.inc"

constexpr DenseKernels kTable = make_dense_kernels(Isa::portable);

}  // namespace

const DenseKernels& dense_kernels_portable() { return kTable; }

const DenseKernels& dense_kernels(Isa isa) {
#if defined(__x86_64__)
  if (isa >= Isa::avx512) return dense_kernels_avx512();
  if (isa == Isa::avx2) return dense_kernels_avx2();
#endif
  (void)isa;
  return dense_kernels_portable();
}

}  // namespace trireme::cpu
