// The functions of a recurrent layer's gates: the one list that graphs and kernels of GPUs share.
#pragma once

#include <cstdint>

namespace trireme::tensor {

/// ONNX's; alpha and beta as ONNX gives them. affine = alpha x + beta; leaky_relu and elu have their alpha
/// below zero; thresholded_relu is x from alpha on; scaled_tanh = alpha tanh(beta x); hard_sigmoid =
/// clamp(alpha x + beta, 0, 1).
enum class GateKind : uint8_t {
  sigmoid,
  tanh,
  relu,
  affine,
  leaky_relu,
  thresholded_relu,
  scaled_tanh,
  hard_sigmoid,
  elu,
  softsign,
  softplus
};

}  // namespace trireme::tensor
