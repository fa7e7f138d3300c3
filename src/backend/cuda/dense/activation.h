// The activations that products and convolutions end with, and their derivatives, in f32.
#pragma once

#include <cmath>

#include "backend/cuda/device/lane.h"
#include "tensor/activation.h"

namespace trireme::cuda {

using tensor::Activation;

/// clip: [lo, hi]; leaky: alpha x below 0; hardsigmoid: clamp(alpha x + beta, 0, 1).
struct ActivationForm {
  Activation kind = Activation::none;
  float lo = 0, hi = 6, alpha = 0.2f, beta = 0.5f;
};

TRIREME_DEVICE float clamped(float x, float lo, float hi) { return x < lo ? lo : x > hi ? hi : x; }
TRIREME_DEVICE float sigmoid_of(float x) { return 1.0f / (1.0f + expf(-x)); }

inline constexpr float kGeluScale = 0.79788456080286536f, kGeluCube = 0.044715f;

TRIREME_DEVICE float activate(const ActivationForm& f, float x) {
  switch (f.kind) {
    case Activation::none: return x;
    case Activation::relu: return x < 0 ? 0.0f : x;
    case Activation::clip: return clamped(x, f.lo, f.hi);
    case Activation::sigmoid: return sigmoid_of(x);
    case Activation::silu: return x * sigmoid_of(x);
    case Activation::hardswish: return x * clamped(x / 6 + 0.5f, 0, 1);
    case Activation::hardsigmoid: return clamped(f.alpha * x + f.beta, 0, 1);
    case Activation::gelu_erf: return 0.5f * x * (1 + erff(x * 0.70710678118654752f));
    case Activation::gelu_tanh: return 0.5f * x * (1 + tanhf(kGeluScale * (x + kGeluCube * x * x * x)));
    case Activation::tanh: return tanhf(x);
    case Activation::leaky: return x < 0 ? f.alpha * x : x;
  }
  return x;
}

/// d activate / dx at x; at a corner the value of the side towards 0, at 0 of the left side.
TRIREME_DEVICE float activation_slope(const ActivationForm& f, float x) {
  switch (f.kind) {
    case Activation::none: return 1;
    case Activation::relu: return x > 0 ? 1.0f : 0.0f;
    case Activation::clip: return x > f.lo && x < f.hi ? 1.0f : 0.0f;
    case Activation::sigmoid: return sigmoid_of(x) * (1 - sigmoid_of(x));
    case Activation::silu: return sigmoid_of(x) * (1 + x * (1 - sigmoid_of(x)));
    case Activation::hardswish: return x < -3 ? 0.0f : x > 3 ? 1.0f : x / 3 + 0.5f;
    case Activation::hardsigmoid: {
      const float y = f.alpha * x + f.beta;
      return y > 0 && y < 1 ? f.alpha : 0.0f;
    }
    case Activation::gelu_erf:
      return 0.5f * (1 + erff(x * 0.70710678118654752f)) + x * 0.39894228040143268f * expf(-0.5f * x * x);
    case Activation::gelu_tanh: {
      const float t = tanhf(kGeluScale * (x + kGeluCube * x * x * x));
      return 0.5f * (1 + t) + 0.5f * x * (1 - t * t) * kGeluScale * (1 + 3 * kGeluCube * x * x);
    }
    case Activation::tanh: return 1 - tanhf(x) * tanhf(x);
    case Activation::leaky: return x > 0 ? 1.0f : f.alpha;
  }
  return 1;
}

}  // namespace trireme::cuda
