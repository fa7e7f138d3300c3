// The dense kernels compiled for AVX2; reached only through the table, after a run-time check of the
// processor.
#include "backend/cpu/dense/dense_kernels.h"
#include "backend/cpu/dense/dense_simd.h"
#include "backend/cpu/quant/qgemm_kernels.h"

#if defined(__x86_64__)

TRIREME_TARGET_AVX2_BEGIN
namespace trireme::cpu {
namespace {

// Vocabulary, templates, table: in this order.
#include "backend/cpu/dense/dense_simd_avx2.inc"

#include "backend/cpu/dense/dense_activation.inc"
#include "backend/cpu/conv/depthwise_kernel.inc"
#include "backend/cpu/dense/gemm_kernel.inc"
#include "backend/cpu/conv/pool_kernel.inc"
#include "backend/cpu/quant/qgemm_kernel.inc"

#include "backend/cpu/dense/dense_table.inc"

constexpr DenseKernels kTable = make_dense_kernels(Isa::avx2);
constexpr QuantKernels kQuantTable = make_quant_kernels<false>();

}  // namespace
}  // namespace trireme::cpu
TRIREME_TARGET_END

namespace trireme::cpu {

const DenseKernels& dense_kernels_avx2() { return kTable; }
const QuantKernels& quant_kernels_avx2() { return kQuantTable; }

}  // namespace trireme::cpu

#endif
