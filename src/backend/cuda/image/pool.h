// Launchers of window pooling and its gradients, channels first or last.
#pragma once

#include "backend/cuda/device/on.h"

namespace trireme::cuda {

/// One spatial axis: result index o reads inputs o * stride - pad_begin + k * dilation.
struct PoolAxis {
  int32_t in = 1, out = 1, kernel = 1, stride = 1, dilation = 1, pad_begin = 0, pad_end = 0;
};

enum class PoolKind : uint8_t { max, average, lp };

/// x [images, channels, axes...], or [images, axes..., channels] with channels_last; y the same with the
/// results' extents.
struct PoolShape {
  int64_t images = 0, channels = 0;
  PoolAxis axes[3];
  bool channels_last = false;
  PoolKind kind = PoolKind::max;
  bool count_padding = false;  ///< averages divide by the window clipped to the padded image
  bool is_sum = false;         ///< gradient of averages: undivided
  bool rectified = false;      ///< gradient of the maximum: windows without a positive value give nothing
  bool column_major = false;   ///< indices of the maximum
  int64_t p = 2;               ///< order of the Lp norm
};
/// An image has fewer elements than this, so that places in it are 32-bit numbers.
inline constexpr int64_t kPoolImage = int64_t{1} << 31;

/// f32, f16, bf16, f64. `indices` (i64, of the maximum, channels first) may be null.
void pool(On on, const PoolShape& shape, const void* x, void* y, int64_t* indices);
/// dx of every element as the sum over its windows in their order.
struct PoolGradArgs {
  const void *x = nullptr, *dy = nullptr;  ///< x is read by the maximum only
  void *dx = nullptr, *workspace = nullptr;
};
int64_t pool_grad_workspace_bytes(const PoolShape& shape);
void pool_grad(On on, const PoolShape& shape, const PoolGradArgs& args);

}  // namespace trireme::cuda
