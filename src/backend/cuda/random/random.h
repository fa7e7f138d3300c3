// Launchers of draws that are a function of their counters: dropout of a training step, uniform, normal and
// Bernoulli numbers. The bits are the CPU's.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "backend/cuda/device/on.h"

namespace trireme::cuda {

inline constexpr size_t kDropoutRank = 8;

/// y = x / (1 - ratio) where the element is kept, else 0; f32, f16, bf16. Element i of x is element
/// first + begin + sum i_d steps_d of the batch, first = rng[2] row_elements; rng [3] = seed, step, row in
/// device memory.
struct DropoutTrain {
  std::vector<int64_t> extent, steps;
  int64_t begin = 0, row_elements = 0;
  uint32_t threshold = 0, op = 0;
  float scale = 1;
};
/// Extents merged where the steps go on evenly.
DropoutTrain merged(DropoutTrain shape);
void dropout_train(On on, const DropoutTrain& shape, const int64_t* rng, const void* x, void* y);

enum class Draw : uint8_t { uniform, normal, bernoulli };
/// y [n] of `on.dtype` (any type with arithmetic): low + (high - low) u, mean + scale z, or u < p[i] with p
/// of `probability`'s type.
struct DrawArgs {
  Draw draw = Draw::uniform;
  uint64_t seed = 0;
  double a = 0, b = 1;  ///< low and high, or mean and scale
  const void* probability = nullptr;
  tensor::DType probability_type = tensor::DType::f32;
  void* y = nullptr;
  int64_t n = 0;
};
void draw(On on, const DrawArgs& args);

}  // namespace trireme::cuda
