// The dense kernels compiled for AVX-512; reached only through the table, after a run-time check of the
// processor.
#include "backend/cpu/tiles/dense_kernels.h"
#include "backend/cpu/tiles/dense_simd.h"
#include "backend/cpu/tiles/qgemm_kernels.h"

#if defined(__x86_64__)

// GCC 12 warns of the deliberately undefined operands inside its own AVX-512 intrinsics.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"

TRIREME_TARGET_AVX512_BEGIN
namespace trireme::cpu::avx512 {
namespace {

// The order matters: vocabulary of vector types, templates, table.
#include "backend/cpu/tiles/dense_simd_avx512.inc"

#include "backend/cpu/tiles/dense_activation.inc"
#include "backend/cpu/tiles/depthwise_kernel.inc"
#include "backend/cpu/tiles/gemm_kernel.inc"
#include "backend/cpu/tiles/pool_kernel.inc"
#include "backend/cpu/tiles/qgemm_kernel.inc"

#include "backend/cpu/tiles/dense_table.inc"

constexpr DenseKernels kTable = make_dense_kernels(Isa::avx512);
constexpr QuantKernels kQuantTable = make_quant_kernels<false>();

}  // namespace
}  // namespace trireme::cpu::avx512
TRIREME_TARGET_END

namespace trireme::cpu {

const DenseKernels& dense_kernels_avx512() { return avx512::kTable; }
const QuantKernels& quant_kernels_avx512() { return avx512::kQuantTable; }

}  // namespace trireme::cpu

#endif
