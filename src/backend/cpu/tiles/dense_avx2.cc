// The dense kernels compiled for AVX2; reached only through the table, after a run-time check of the
// processor.
#include "backend/cpu/tiles/dense_kernels.h"
#include "backend/cpu/tiles/dense_simd.h"
#include "backend/cpu/tiles/qgemm_kernels.h"

#if defined(__x86_64__)

TRIREME_TARGET_AVX2_BEGIN
namespace trireme::cpu::avx2 {
namespace {

// The order matters: vocabulary of vector types, templates, table.
#include "backend/cpu/tiles/dense_simd_avx2.inc"

#include "backend/cpu/tiles/dense_activation.inc"
#include "backend/cpu/tiles/depthwise_kernel.inc"
#include "backend/cpu/tiles/gemm_kernel.inc"
#include "backend/cpu/tiles/pool_kernel.inc"
#include "backend/cpu/tiles/qgemm_kernel.inc"

#include "backend/cpu/tiles/dense_table.inc"

constexpr DenseKernels kTable = make_dense_kernels(Isa::avx2);
constexpr QuantKernels kQuantTable = make_quant_kernels<false>();

}  // namespace
}  // namespace trireme::cpu::avx2
TRIREME_TARGET_END

namespace trireme::cpu {

const DenseKernels& dense_kernels_avx2() { return avx2::kTable; }
const QuantKernels& quant_kernels_avx2() { return avx2::kQuantTable; }

}  // namespace trireme::cpu

#endif
