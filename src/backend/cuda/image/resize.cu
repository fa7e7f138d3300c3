// Launchers of resizing.
#include "backend/cuda/image/resize.h"

#include "backend/cuda/image/resize_kernels.h"
#include "backend/cuda/device/types.h"

namespace trireme::cuda {
namespace {

constexpr int kThreads = 128;

struct Wide16 {
  uint64_t part[2];
};

/// The walk when each item covers `lines` lines of the last axis, or `elements` elements after it.
ResizeWalk walk_of(const ResizePass& pass, int64_t lines, int64_t elements) {
  ResizeWalk w{};
  const ResizeShape& s = pass.shape;
  w.count = s.results() / (lines * elements);
  int64_t step = 1;
  for (int d = kResizeAxes - 1; d >= 0; --d) {
    const bool is_last = d == kResizeAxes - 1;
    w.axes[d] = pass.axes[d];
    w.between[d] = Divider(s.between[d] / (is_last ? elements : 1), w.count);
    w.out[d] = Divider(s.out[d] / (is_last ? lines : 1), w.count);
    w.between_step[d] = step;
    step *= s.between[d];
    w.axis_step[d] = step;
    step *= s.in[d];
  }
  w.image = step;
  return w;
}

Launch grid_for(tensor::Stream& stream, int64_t count) {
  return {blocks_for(cuda_stream(stream), (count + kThreads - 1) / kThreads, 64), kThreads};
}

template <class X, class Y>
void run(tensor::Stream& stream, const ResizePass& pass, const void* x, void* y) {
  using A = typename ResizeLines<X, Y, 1, false>::A;
  constexpr int kWide = std::is_floating_point_v<X> && sizeof(X) == 8 ? 1
                        : std::is_integral_v<X> || std::is_integral_v<Y>
                            ? 1
                            : 16 / static_cast<int>(sizeof(X) > sizeof(Y) ? sizeof(X) : sizeof(Y));
  const auto* from = static_cast<const X*>(x);
  auto* to = static_cast<Y*>(y);
  const A outside = static_cast<A>(pass.outside);
  const int64_t last = pass.shape.between[kResizeAxes - 1], lines = pass.shape.out[kResizeAxes - 1];
  if constexpr (kWide > 1) {
    if (last % kWide == 0) {
      const ResizeWalk walk = walk_of(pass, 1, kWide);
      return launch(stream, "resize", grid_for(stream, walk.count),
                    ResizeLines<X, Y, kWide, false>{from, to, walk, outside});
    }
    if (last == 1 && lines % kWide == 0) {
      const ResizeWalk walk = walk_of(pass, kWide, 1);
      return launch(stream, "resize", grid_for(stream, walk.count),
                    ResizeLines<X, Y, kWide, true>{from, to, walk, outside});
    }
  }
  const ResizeWalk walk = walk_of(pass, 1, 1);
  launch(stream, "resize", grid_for(stream, walk.count),
         ResizeLines<X, Y, 1, false>{from, to, walk, outside});
}

template <class T, class A>
void by_width(tensor::Stream& stream, const ResizePass& pass, const void* x, void* y) {
  if (pass.from_wide && pass.to_wide) return run<A, A>(stream, pass, x, y);
  if (pass.from_wide) return run<A, T>(stream, pass, x, y);
  if (pass.to_wide) return run<T, A>(stream, pass, x, y);
  run<T, T>(stream, pass, x, y);
}

template <class T>
void move(tensor::Stream& stream, const ResizePass& pass, const void* x, void* y, uint64_t outside) {
  constexpr int kWide = 16 / static_cast<int>(sizeof(T));
  T unit{};
  if constexpr (sizeof(T) <= 8) unit = static_cast<T>(outside);
  const ResizeShape& s = pass.shape;
  const auto* from = static_cast<const T*>(x);
  auto* to = static_cast<T*>(y);
  if constexpr (kWide > 1) {
    if (s.between[kResizeAxes - 1] == 1 && s.out[kResizeAxes - 1] % kWide == 0) {
      const ResizeWalk walk = walk_of(pass, kWide, 1);
      return launch(stream, "resize_moves", grid_for(stream, walk.count),
                    ResizeMoves<T, kWide>{from, to, walk, unit});
    }
  }
  const ResizeWalk walk = walk_of(pass, 1, 1);
  launch(stream, "resize_moves", grid_for(stream, walk.count), ResizeMoves<T, 1>{from, to, walk, unit});
}

}  // namespace

void resize(On on, const ResizePass& pass, const void* x, void* y) {
  using tensor::DType;
  if (pass.shape.results() == 0) return;
  switch (on.dtype) {
    case DType::f32: return by_width<float, float>(on.stream, pass, x, y);
    case DType::f16: return by_width<Half, float>(on.stream, pass, x, y);
    case DType::bf16: return by_width<BFloat16, float>(on.stream, pass, x, y);
    case DType::f64: return by_width<double, double>(on.stream, pass, x, y);
    case DType::u8: return by_width<uint8_t, float>(on.stream, pass, x, y);
    case DType::i8: return by_width<int8_t, float>(on.stream, pass, x, y);
    case DType::i32: return by_width<int32_t, float>(on.stream, pass, x, y);
    default: base::fail(base::ErrorCode::internal, "no resizing of ", name_of(on.dtype), " on the device");
  }
}

void resize_moves(tensor::Stream& stream, const ResizePass& given, ResizeUnit element, const void* x,
                  void* y) {
  if (given.shape.results() == 0) return;
  ResizePass pass = given;
  bool is_uniform = true;
  for (const ResizeAxisTerms& axis : pass.axes) is_uniform = is_uniform && axis.outside == nullptr;
  // The elements after the last axis are moved in units as wide as their number allows.
  const uint64_t outside = element.outside;
  int64_t unit = element.bytes;
  int64_t& last = pass.shape.between[kResizeAxes - 1];
  while (is_uniform && unit < 16 && last % 2 == 0) unit *= 2, last /= 2;
  switch (unit) {
    case 1: return move<uint8_t>(stream, pass, x, y, outside);
    case 2: return move<uint16_t>(stream, pass, x, y, outside);
    case 4: return move<uint32_t>(stream, pass, x, y, outside);
    case 8: return move<uint64_t>(stream, pass, x, y, outside);
    default: return move<Wide16>(stream, pass, x, y, outside);
  }
}

}  // namespace trireme::cuda
