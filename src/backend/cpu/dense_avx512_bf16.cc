// The bf16 product tiles compiled for AVX-512 with bf16; reached only after a run-time check.
#include "backend/cpu/dense_bf16.h"
#include "backend/cpu/dense_simd.h"

#if defined(__x86_64__)

// GCC 12 takes the deliberate "undefined" operand inside its own AVX-512 intrinsics for a mistake of ours.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
// Only the tiles of the shared vocabulary are used here.
#pragma GCC diagnostic ignored "-Wunused-function"

#define TRIREME_BF16 1

TRIREME_TARGET_BF16_BEGIN
namespace trireme::cpu {
namespace {

// Vocabulary, then templates.
#include "backend/cpu/dense_simd_avx512.inc"

#include "backend/cpu/gemm_kernel.inc"

TRIREME_INLINE __m512i load_wide(const uint16_t* p, __mmask16 valid) {
  return _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(valid, p));
}

TRIREME_INLINE __mmask16 mask_of(int64_t left) {
  return static_cast<__mmask16>(left >= 16 ? 0xFFFFu : (1u << left) - 1);
}

void interleave(const uint16_t* r0, const uint16_t* r1, int64_t n, uint32_t* out) {
  for (int64_t j = 0; j < n; j += 16) {
    const __mmask16 valid = mask_of(n - j);
    __m512i pair = load_wide(r0 + j, valid);
    if (r1 != nullptr) pair = _mm512_or_si512(pair, _mm512_slli_epi32(load_wide(r1 + j, valid), 16));
    _mm512_mask_storeu_epi32(out + j, valid, pair);
  }
}

void widen(const uint16_t* from, int64_t n, float* to) {
  for (int64_t j = 0; j < n; j += 16) {
    const __mmask16 valid = mask_of(n - j);
    _mm512_mask_storeu_epi32(to + j, valid, _mm512_slli_epi32(load_wide(from + j, valid), 16));
  }
}

void narrow(const float* from, int64_t n, uint16_t* to) {
  for (int64_t j = 0; j < n; j += 16) {
    const __mmask16 valid = mask_of(n - j);
    const __m512 x = _mm512_maskz_loadu_ps(valid, from + j);
    const __m512i bits = _mm512_castps_si512(x);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, odd), _mm512_set1_epi32(0x7FFF));
    // Rounding would carry a NaN into infinity: it keeps its upper half and becomes quiet.
    const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x00400000));
    const __m512i result = _mm512_srli_epi32(_mm512_mask_mov_epi32(rounded, nan, quiet), 16);
    _mm256_mask_storeu_epi16(to + j, valid, _mm512_cvtepi32_epi16(result));
  }
}

void add(const uint16_t* from, int64_t n, float* to) {
  for (int64_t j = 0; j < n; j += 16) {
    const __mmask16 valid = mask_of(n - j);
    const __m512 x = _mm512_castsi512_ps(_mm512_slli_epi32(load_wide(from + j, valid), 16));
    _mm512_mask_storeu_ps(to + j, valid, _mm512_add_ps(_mm512_maskz_loadu_ps(valid, to + j), x));
  }
}

constexpr Bf16Kernels make_kernels() {
  Bf16Kernels kernels{};
  kernels.tiles.isa = Isa::avx512;
  kernels.tiles.tile_rows = kTileRows;
  kernels.tiles.width = kW;
  kernels.tiles.panel = 2 * kW;
  fill_tiles<1, 1>(kernels.tiles);
  fill_tiles<2, 1>(kernels.tiles);
  kernels.tiles.transpose = transpose_rows;
  kernels.interleave = interleave;
  kernels.widen = widen;
  kernels.narrow = narrow;
  kernels.add = add;
  return kernels;
}

constexpr Bf16Kernels kKernels = make_kernels();

}  // namespace
}  // namespace trireme::cpu
TRIREME_TARGET_END

namespace trireme::cpu {

const Bf16Kernels* bf16_kernels() {
  static const bool usable = best_isa() >= Isa::avx512 && __builtin_cpu_supports("avx512bf16");
  return usable ? &kKernels : nullptr;
}

}  // namespace trireme::cpu

#else

namespace trireme::cpu {

const Bf16Kernels* bf16_kernels() { return nullptr; }

}  // namespace trireme::cpu

#endif
