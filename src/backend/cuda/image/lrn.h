// Launchers of normalisation over neighbouring channels, and its gradient.
#pragma once

#include "backend/cuda/device/on.h"

namespace trireme::cuda {

/// x [batch, channels, points]; y = x / (bias + alpha / size sum of x^2 over `size` channels)^beta.
struct LrnShape {
  int64_t batch = 0, channels = 0, points = 1, size = 1;
  float alpha = 1e-4f, beta = 0.75f, bias = 1;
};
/// f32, f16 or bf16.
void lrn(On on, const LrnShape& shape, const void* x, void* y);
struct LrnGradArgs {
  const void *dy = nullptr, *x = nullptr;
  void *dx = nullptr, *workspace = nullptr;
};
int64_t lrn_grad_workspace_bytes(const LrnShape& shape);
void lrn_grad(On on, const LrnShape& shape, const LrnGradArgs& args);

}  // namespace trireme::cuda
