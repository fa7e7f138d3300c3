// Launchers of window pooling; channels-last images are processed in packs of channels.
#include "backend/cuda/image/pool.h"

#include "backend/cuda/device/launch.h"
#include "backend/cuda/image/pool_kernels.h"
#include "base/error.h"

namespace trireme::cuda {
namespace {

constexpr int kThreads = 128;

template <class F>
void by_type(tensor::DType dtype, F f) {
  using tensor::DType;
  switch (dtype) {
    case DType::f32: return f(float{});
    case DType::f16: return f(Half{});
    case DType::bf16: return f(BFloat16{});
    case DType::f64: return f(double{});
    default: base::fail(base::ErrorCode::internal, "no pooling of ", name_of(dtype), " on the device");
  }
}

/// Strides in memory. An item is `wide` channels of a result, or of an operand if `of_x`.
PoolWalk walk_of(const PoolShape& s, bool of_x, int64_t wide) {
  PoolWalk w{};
  w.shape = s;
  const int64_t first = s.channels_last ? s.channels : 1;
  int64_t x = first, y = first;
  for (int d = 2; d >= 0; --d) {
    w.x_step[d] = static_cast<int32_t>(x);
    w.y_step[d] = static_cast<int32_t>(y);
    x *= s.axes[d].in;
    y *= s.axes[d].out;
  }
  w.x_image = x / first * s.channels;
  w.y_image = y / first * s.channels;
  w.x_channel = s.channels_last ? 1 : x;
  w.y_channel = s.channels_last ? 1 : y;
  w.count = s.images * (of_x ? w.x_image : w.y_image) / wide;
  w.channels = Divider(s.channels / wide, w.count);
  for (int d = 0; d < 3; ++d) w.spatial[d] = Divider(of_x ? s.axes[d].in : s.axes[d].out, w.count);
  return w;
}

Launch grid_for(tensor::Stream& stream, int64_t count) {
  return {blocks_for(cuda_stream(stream), (count + kThreads - 1) / kThreads, 64), kThreads};
}

/// Channels per thread: one for f64, because windows of two f64 channels would need more registers than
/// exist.
template <class T>
constexpr int kChannels = sizeof(T) == 8 ? 1 : kPack<T>;

template <class T>
bool is_packed(const PoolShape& s) {
  return s.channels_last && s.channels % kChannels<T> == 0;
}

template <class T, int kWide>
void run(On on, const PoolShape& s, const void* x, void* y, int64_t* indices) {
  const PoolWalk walk = walk_of(s, false, kWide);
  if (walk.count == 0) return;
  launch(on.stream, "pool", grid_for(on.stream, walk.count),
         Pool<T, kWide>{static_cast<const T*>(x), static_cast<T*>(y), indices, walk});
}

template <class T, int kWide>
void run_grad(On on, const PoolShape& s, const PoolGradArgs& a) {
  const PoolWalk walk = walk_of(s, true, kWide), results = walk_of(s, false, kWide);
  if (walk.count == 0) return;
  const Launch grid = grid_for(on.stream, walk.count);
  const T* dy = static_cast<const T*>(a.dy);
  T* dx = static_cast<T*>(a.dx);
  if (s.kind == PoolKind::max) {
    auto* places = static_cast<int32_t*>(a.workspace);
    launch(on.stream, "pool_places", grid_for(on.stream, results.count),
           PoolPlaces<T, kWide>{static_cast<const T*>(a.x), places, results});
    launch(on.stream, "max_pool_grad", grid, PoolGrad<T, kWide, true>{dy, places, dx, walk});
  } else {
    launch(on.stream, "average_pool_grad", grid, PoolGrad<T, kWide, false>{dy, nullptr, dx, walk});
  }
}

}  // namespace

void pool(On on, const PoolShape& s, const void* x, void* y, int64_t* indices) {
  by_type(on.dtype, [&](auto zero) {
    using T = decltype(zero);
    is_packed<T>(s) ? run<T, kChannels<T>>(on, s, x, y, indices) : run<T, 1>(on, s, x, y, indices);
  });
}

int64_t pool_grad_workspace_bytes(const PoolShape& s) {
  const int64_t results = s.images * s.channels * s.axes[0].out * s.axes[1].out * s.axes[2].out;
  return s.kind == PoolKind::max ? results * static_cast<int64_t>(sizeof(int32_t)) : 0;
}

void pool_grad(On on, const PoolShape& s, const PoolGradArgs& a) {
  by_type(on.dtype, [&](auto zero) {
    using T = decltype(zero);
    is_packed<T>(s) ? run_grad<T, kChannels<T>>(on, s, a) : run_grad<T, 1>(on, s, a);
  });
}

}  // namespace trireme::cuda
