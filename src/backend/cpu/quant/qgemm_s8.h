// 8-bit integer products: u8 or s8 activations times 8-bit weights, exact 32-bit sums, requantisation fused.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/cpu/tiles/dense_epilogue.h"
#include "backend/cpu/tiles/dense_isa.h"
#include "base/threads/thread_pool.h"

namespace trireme::cpu {

/// How activation bytes are read: real = scale * (byte - zero).
struct QuantInput {
  bool is_signed = false;
  int32_t zero = 0;
};

/// Weights in caller memory. Element (k, n) is data[k * ld + n], or data[n * ld + k] when `transposed`.
/// k runs over `taps` x `run`: convolutions have one run of channels per kernel tap, matrices one run.
struct QuantMatrixB {
  const void* data = nullptr;
  bool is_signed = true;
  int64_t taps = 1, run = 0, n = 0, ld = 0;
  bool transposed = false;
  int64_t fillers =
      0;  // of the taps * run rows, those that only fill up groups: weight zero, activation byte zero
};

/// Weights as column panels of 32-bit groups of k (4 bytes, or 2 words where the machine has no byte dot
/// product).
struct PackedQuantMatrix {
  const int32_t* data = nullptr;
  const int32_t* column_sums = nullptr;  // [n] sums over k of the weights as packed
  int64_t taps = 1, run = 0, n = 0;
  int64_t depth = 0;     // real terms of each sum
  bool shifted = false;  // u8 weights are packed minus 128
  Isa isa = Isa::portable;
};

size_t packed_quant_bytes(int64_t taps, int64_t run, int64_t n, Isa isa = best_isa());
PackedQuantMatrix pack_quant_b(const QuantMatrixB& b, void* memory, Isa isa = best_isa());

/// Everything about zero points that does not depend on the activations, [n] each:
/// sum_k (a - a.zero)(b - b_zero) + bias = dot(a, packed b) + offsets - row_factors * sum_k a.
struct QuantOffsets {
  int32_t* offsets = nullptr;
  int32_t* row_factors = nullptr;
};

/// Fills `out`. `bias` and `b_zero` (as in the model, of the weights' own type) are [n] or null. Returns
/// whether any row factor is nonzero; if not, leave QuantEpilogue::row_factors null and save the row sums.
/// Once per model.
bool quant_offsets(const PackedQuantMatrix& b, QuantInput a, const int32_t* bias, const int32_t* b_zero,
                   QuantOffsets out);

/// acc = exact 32-bit sum. s32: acc. f32: epilogue(acc * scale[n]). u8, s8: clamp(round_half_even(acc *
/// scale[n]) + zero, lo, hi), where lo and hi are quantised values inside the type's range (a fused relu or
/// clip).
struct QuantEpilogue {
  QuantOutput output = QuantOutput::u8;
  const int32_t* offsets = nullptr;      // [n], see quant_offsets
  const int32_t* row_factors = nullptr;  // [n] or null, see quant_offsets
  const float* scale = nullptr;          // [n]; unused for s32
  int32_t zero = 0, lo = 0, hi = 255;
  bool scales_below_one = false;  // promised by the caller: no |acc * scale| reaches 2^31
  Epilogue real;                  // f32 only: bias, residual, activation
};

struct QuantGemmArgs {
  int64_t m = 0;
  const void* a = nullptr;  // [m, run] bytes, rows lda bytes apart
  int64_t lda = 0;
  QuantInput input;
  PackedQuantMatrix b;
  void* c = nullptr;  // [m, n], rows ldc elements apart
  int64_t ldc = 0;
  QuantEpilogue epilogue;
};

size_t qgemm_workspace_bytes(int64_t m, const PackedQuantMatrix& b, int threads);
void qgemm(const QuantGemmArgs& args, void* workspace, base::ThreadPool& pool);

}  // namespace trireme::cpu
