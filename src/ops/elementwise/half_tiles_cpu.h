// f16 and bf16 rows through the f32 tiles: converted in pieces that stay in the first-level cache.
#pragma once

#include <algorithm>

#include "backend/cpu/elementwise/cast_types.h"
#include "tensor/dtype.h"

namespace trireme::ops {

inline bool is_half(tensor::DType t) { return t == tensor::DType::f16 || t == tensor::DType::bf16; }

/// Converts between one 16-bit type and f32 on the calling thread.
struct HalfCodec {
  explicit HalfCodec(tensor::DType t)
      : widen(t == tensor::DType::f16 ? &cpu::f16_to_f32 : &cpu::bf16_to_f32),
        narrow(t == tensor::DType::f16 ? &cpu::f32_to_f16 : &cpu::f32_to_bf16) {}
  void (*widen)(const uint16_t* x, float* y, size_t n);
  void (*narrow)(const float* x, uint16_t* y, size_t n);
};

constexpr int64_t kHalfTile = 1024;  // three f32 tiles of this are 12 KiB

/// y = f(x) for [0, n): f(const float* x, float* y, size_t n).
template <class F>
void half_unary(const HalfCodec& codec, const uint16_t* x, uint16_t* y, int64_t n, const F& f) {
  alignas(64) float tile[kHalfTile];
  for (int64_t at = 0; at < n; at += kHalfTile) {
    const size_t count = static_cast<size_t>(std::min(kHalfTile, n - at));
    codec.widen(x + at, tile, count);
    f(tile, tile, count);
    codec.narrow(tile, y + at, count);
  }
}

/// Two operands of one run; an operand with step 0 supplies its first element everywhere.
struct HalfOperands {
  const uint16_t* a;
  const uint16_t* b;
  int64_t a_step = 1, b_step = 1;
};

/// y = f(a, b) for [0, n): f(const float* a, const float* b, float* y, size_t n), of a scalar operand one
/// element.
template <class F>
void half_binary(const HalfCodec& codec, const HalfOperands& g, uint16_t* y, int64_t n, const F& f) {
  alignas(64) float a[kHalfTile], b[kHalfTile];
  for (int64_t at = 0; at < n; at += kHalfTile) {
    const size_t count = static_cast<size_t>(std::min(kHalfTile, n - at));
    codec.widen(g.a + at * g.a_step, a, g.a_step == 0 ? 1 : count);
    codec.widen(g.b + at * g.b_step, b, g.b_step == 0 ? 1 : count);
    alignas(64) float sums[kHalfTile];
    f(a, b, sums, count);
    codec.narrow(sums, y + at, count);
  }
}

}  // namespace trireme::ops
