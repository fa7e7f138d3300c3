// The functions of gates and their derivatives, in f32.
#pragma once

#include <cmath>

#include "backend/cuda/device/lane.h"
#include "backend/cuda/rnn/recurrent.h"

namespace trireme::cuda {

TRIREME_DEVICE float gate_value(const RecurrentFunction& f, float x) {
  switch (f.kind) {
    case tensor::GateKind::sigmoid: return 1 / (1 + std::exp(-x));
    case tensor::GateKind::tanh: return std::tanh(x);
    case tensor::GateKind::relu: return x < 0 ? 0 : x;
    case tensor::GateKind::affine: return f.alpha * x + f.beta;
    case tensor::GateKind::leaky_relu: return x < 0 ? f.alpha * x : x;
    case tensor::GateKind::thresholded_relu: return x >= f.alpha ? x : 0;
    case tensor::GateKind::scaled_tanh: return f.alpha * std::tanh(f.beta * x);
    case tensor::GateKind::hard_sigmoid: return std::fmin(std::fmax(f.alpha * x + f.beta, 0.0f), 1.0f);
    case tensor::GateKind::elu: return x < 0 ? f.alpha * std::expm1(x) : x;
    case tensor::GateKind::softsign: return x / (1 + std::fabs(x));
    case tensor::GateKind::softplus: return x > 30 ? x : std::log1p(std::exp(x));
  }
  return x;
}

/// The derivative at x.
TRIREME_DEVICE float gate_slope(const RecurrentFunction& f, float x) {
  const float y = gate_value(f, x);
  switch (f.kind) {
    case tensor::GateKind::sigmoid: return y * (1 - y);
    case tensor::GateKind::tanh: return 1 - y * y;
    case tensor::GateKind::relu: return x > 0 ? 1 : 0;
    case tensor::GateKind::affine: return f.alpha;
    case tensor::GateKind::leaky_relu: return x < 0 ? f.alpha : 1;
    case tensor::GateKind::thresholded_relu: return x >= f.alpha ? 1 : 0;
    case tensor::GateKind::scaled_tanh: {
      const float t = std::tanh(f.beta * x);
      return f.alpha * f.beta * (1 - t * t);
    }
    case tensor::GateKind::hard_sigmoid: return y > 0 && y < 1 ? f.alpha : 0;
    case tensor::GateKind::elu: return x < 0 ? f.alpha * std::exp(x) : 1;
    case tensor::GateKind::softsign: return 1 / ((1 + std::fabs(x)) * (1 + std::fabs(x)));
    case tensor::GateKind::softplus: return 1 / (1 + std::exp(-x));
  }
  return 1;
}

}  // namespace trireme::cuda
