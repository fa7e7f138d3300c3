// The activations that products and convolutions may end with: the one list that graphs, kernels of the CPU
// and kernels of GPUs share.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace trireme::tensor {

/// `clip` clamps to [lo, hi]; `leaky` multiplies negative values by alpha; hardsigmoid = clamp(alpha x +
/// beta, 0, 1); hardswish = x * clamp(x / 6 + 0.5, 0, 1); silu = x * sigmoid(x).
enum class Activation : uint8_t {
  none,
  relu,
  clip,
  sigmoid,
  silu,
  hardswish,
  hardsigmoid,
  gelu_erf,
  gelu_tanh,
  tanh,
  leaky
};

/// Their names in graphs, in the order of the list.
inline constexpr std::array<std::string_view, 11> kActivationNames{
    "none",        "relu",     "clip",      "sigmoid", "silu", "hardswish",
    "hardsigmoid", "gelu_erf", "gelu_tanh", "tanh",    "leaky"};
static_assert(kActivationNames.size() == static_cast<size_t>(Activation::leaky) + 1);

}  // namespace trireme::tensor
