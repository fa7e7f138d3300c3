// What happens to each element of a dense product or convolution before it is stored: bias, activation,
// residual.
#pragma once

#include <cstdint>
#include <limits>

#include "tensor/activation.h"

namespace trireme::cpu {

using tensor::Activation;

/// As what the results of 8-bit products are stored.
enum class QuantOutput : uint8_t { s32, f32, u8, s8 };

/// y = act(acc + bias + residual), or act(acc + bias) + residual with `act_before_residual`.
/// `bias` is [n]; `residual` is laid out exactly like the output (same leading dimension); either may be
/// null.
struct Epilogue {
  const float* bias = nullptr;
  const float* residual = nullptr;
  Activation act = Activation::none;
  float lo = 0.0f;     // clip
  float hi = 6.0f;     // clip
  float alpha = 0.2f;  // leaky, hardsigmoid
  float beta = 0.5f;   // hardsigmoid
  bool act_before_residual = false;
};

/// True if the activation is a clamp, which kernels apply in registers; `lo` and `hi` receive its bounds.
inline bool clamp_bounds(const Epilogue& e, float& lo, float& hi) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  lo = -kInf;
  hi = kInf;
  if (e.act == Activation::none) return true;
  if (e.act == Activation::relu) lo = 0.0f;
  if (e.act == Activation::clip) {
    lo = e.lo;
    hi = e.hi;
  }
  return e.act == Activation::relu || e.act == Activation::clip;
}

}  // namespace trireme::cpu
