// Group norm of channels-last images.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/threads/thread_pool.h"

namespace trireme::cpu {

struct GroupNormLast {
  const float* x;  // [batch, points, channels]
  float* y;        // same, may be x
  int64_t batch = 0;
  int64_t points = 0;
  int64_t channels = 0;
  int64_t groups = 1;            // divides channels; == channels is instance norm
  const float* scale = nullptr;  // [channels]
  const float* bias = nullptr;   // [channels]
  float eps = 1e-5f;
};

size_t group_norm_last_workspace_bytes(const GroupNormLast& args);

/// Normalises each group of channels of each image by its own mean and variance, in two passes over the
/// image: sums of 128 points in f32, those in double, in an order that neither batch nor team change. 16
/// bytes from memory per element where an image does not stay in the cache, else 8; 6 flop.
void group_norm_last(const GroupNormLast& args, void* workspace, base::ThreadPool& pool);

}  // namespace trireme::cpu
