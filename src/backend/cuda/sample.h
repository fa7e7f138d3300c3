// Launchers of draws from distributions over a row.
#pragma once

#include "backend/cuda/kernels.h"

namespace trireme::cuda {

/// y [rows] by settings [rows, 4] and counters [rows, 2] in device memory: see sample_tokens in ops/random.
struct SampleArgs {
  const void* x = nullptr;
  const float* settings = nullptr;
  const int64_t* counters = nullptr;
  int64_t* y = nullptr;
  int64_t rows = 0, n = 0;
};
void sample_tokens(On on, const SampleArgs& args);

/// y [rows, samples] of `on.dtype` from x [rows, classes].
struct MultinomialArgs {
  const void* x = nullptr;
  tensor::DType x_type = tensor::DType::f32;
  void* y = nullptr;
  int64_t rows = 0, classes = 0, samples = 0;
  uint64_t seed = 0;
};
void multinomial(On on, const MultinomialArgs& args);

}  // namespace trireme::cuda
