// Many tensors in one launch: a table of addresses goes with the launch, a block takes chunks of tensors in
// turn. What a step is made of is computed once.
#pragma once

#include <cmath>
#include <cstdint>

#include "backend/cuda/optim/optimizer.h"
#include "backend/cuda/reduce/rows.h"

namespace trireme::cuda {

/// A tensor of a launch; what a rule does not have is null.
struct UpdateGroup {
  const float *param, *grad;
  const float* state[2];
  float* param_out;
  float* state_out[2];
  int64_t n;
  RoundedCopy copy;
};

/// Four 16-bit elements of one access.
template <class T>
struct alignas(8) HalfPack {
  T item[4];
};
template <class T>
TRIREME_DEVICE void store_half_pack(const float* in, int64_t count, T* at) {
  if (count >= 4) {
    HalfPack<T> p;
    for (int i = 0; i < 4; ++i) p.item[i] = from_float<T>(in[i]);
    *reinterpret_cast<HalfPack<T>*>(at) = p;
  } else {
    for (int i = 0; i < 4; ++i) {
      if (i < count) at[i] = from_float<T>(in[i]);
    }
  }
}

/// Writes elements [at, at + count) of a copy, `count` at most four; four stand at 8 bytes.
TRIREME_DEVICE void store_rounded(const RoundedCopy& copy, const float* in, int64_t at, int64_t count) {
  if (copy.at == nullptr) return;
  copy.is_bf16 ? store_half_pack(in, count, static_cast<BFloat16*>(copy.at) + at)
               : store_half_pack(in, count, static_cast<Half*>(copy.at) + at);
}
/// The new content of a parameter and of its copy.
TRIREME_DEVICE void store_param(const UpdateGroup& g, const float* in, int64_t at, int64_t count) {
  store_pack(in, count, g.param_out + at);
  store_rounded(g.copy, in, at, count);
}

/// Whether packs of four may be read and written everywhere.
TRIREME_DEVICE bool is_aligned(const UpdateGroup& g) {
  const auto bits = [](const void* p) { return reinterpret_cast<uintptr_t>(p); };
  return (bits(g.copy.at) & 7) == 0 && ((bits(g.param) | bits(g.grad) | bits(g.state[0]) | bits(g.state[1]) |
                                         bits(g.param_out) | bits(g.state_out[0]) | bits(g.state_out[1])) &
                                        15) == 0;
}

/// The group that a task belongs to: first[group] <= task < first[group + 1], of `count` groups.
TRIREME_DEVICE int group_of_task(const int64_t* first, int count, int64_t task) {
  int low = 0, high = count;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    first[middle] <= task ? low = middle : high = middle;
  }
  return low;
}

/// Fits the parameters of a launch.
struct UpdateTable {
  static constexpr int kMost = 64;
  static constexpr int64_t kChunk = 8192;  // elements
  UpdateGroup group[kMost];
  int64_t first_chunk[kMost + 1];
  int count;

  TRIREME_DEVICE int group_of(int64_t chunk) const { return group_of_task(first_chunk, count, chunk); }
};

/// What a step is made of, computed once a launch from operands in device memory.
struct UpdateNumbers {
  float grad_scale, lr, rate, root, decay;
  int32_t is_skipped, is_first;
};

/// A float operand of either type, or absent.
struct FloatScalar {
  const void* at;
  bool is_wide;
  TRIREME_DEVICE double value(double absent) const {
    if (at == nullptr) return absent;
    return is_wide ? *static_cast<const double*>(at) : static_cast<double>(*static_cast<const float*>(at));
  }
};

/// rate = lr / (1 - beta1^t), root = 1 / sqrt(1 - beta2^t), decay = 1 - lr weight_decay, all in f64.
struct PrepareUpdate {
  FloatScalar lr, grad_scale;
  const int64_t* step;
  const uint8_t* skip;  // or null
  double lr_scale, beta1, beta2, weight_decay;
  UpdateNumbers* out;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    if (lane.thread() != 0) return;
    const double rate = lr.value(0) * lr_scale, t = static_cast<double>(*step);
    out->grad_scale = static_cast<float>(grad_scale.value(1));
    out->lr = static_cast<float>(rate);
    out->rate = static_cast<float>(rate / (1 - pow(beta1, t)));
    out->root = static_cast<float>(1 / sqrt(1 - pow(beta2, t)));
    out->decay = static_cast<float>(1 - rate * weight_decay);
    out->is_skipped = skip != nullptr && *skip != 0 ? 1 : 0;
    out->is_first = t <= 1 ? 1 : 0;
  }
};

/// k = min(keep, (1 + t) / (10 + t)) where it ramps up; rate = k, root = 1 - k.
struct PrepareAverage {
  const int64_t* step;  // null without ramp
  const uint8_t* skip;
  double keep;
  UpdateNumbers* out;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    if (lane.thread() != 0) return;
    double k = keep;
    if (step != nullptr) {
      const double t = static_cast<double>(*step), ramp = (1 + t) / (10 + t);
      k = ramp < k ? ramp : k;
    }
    *out = {1, 0, static_cast<float>(k), static_cast<float>(1 - k), 1, skip != nullptr && *skip != 0 ? 1 : 0,
            0};
  }
};

}  // namespace trireme::cuda
