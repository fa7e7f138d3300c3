// The 8-bit product tiles compiled for AVX-512 with VNNI; reached only through the table, after a run-time
// check.
#include "backend/cpu/tiles/dense_kernels.h"
#include "backend/cpu/tiles/dense_simd.h"
#include "backend/cpu/tiles/qgemm_kernels.h"

#if defined(__x86_64__)

// GCC 12 warns of the deliberately undefined operands inside its own AVX-512 intrinsics.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"

#define TRIREME_VNNI 1

TRIREME_TARGET_VNNI_BEGIN
namespace trireme::cpu::avx512_vnni {
namespace {

// First the vocabulary of vector types, then the templates that use it.
#include "backend/cpu/tiles/dense_simd_avx512.inc"

#include "backend/cpu/tiles/qgemm_kernel.inc"
#include "backend/cpu/tiles/qgemm_bytes_kernel.inc"
#include "backend/cpu/tiles/depthwise_dot_kernel.inc"

constexpr QuantKernels make_vnni_kernels() {
  QuantKernels table = make_quant_kernels<true>();
  fill_byte_tiles<1, 1>(table);
  fill_byte_tiles<2, 1>(table);
  fill_byte_tiles<4, 1>(table);
  table.dot_band = dot_band;
  table.widen_pixels = widen_pixels;
  return table;
}

constexpr QuantKernels kQuantTable = make_vnni_kernels();

}  // namespace
}  // namespace trireme::cpu::avx512_vnni
TRIREME_TARGET_END

#undef TRIREME_VNNI

namespace trireme::cpu {

const QuantKernels& quant_kernels_avx512_vnni() { return avx512_vnni::kQuantTable; }

}  // namespace trireme::cpu

#endif
