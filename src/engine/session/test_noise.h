// Random inputs for tests of sessions.
#pragma once

#include "ops/test_eval.h"

namespace trireme::engine {

/// Uniform values in [-1, 1).
inline tensor::Tensor noise(const tensor::Dims& dims, uint64_t seed) {
  return ops::testing::random_tensor(tensor::DType::f32, dims, -1, 1, seed);
}

}  // namespace trireme::engine
