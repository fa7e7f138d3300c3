// Launchers of tensors whose elements follow from their indices.
#include "backend/cuda/index/fill.h"

#include "backend/cuda/index/fill_kernels.h"
#include "backend/cuda/device/types.h"

namespace trireme::cuda {
namespace {

/// Calls f(unit) with the unsigned type for elements of 1, 2, 4 or 8 bytes.
template <class F>
void by_unit(int64_t bytes, F f) {
  switch (bytes) {
    case 1: return f(uint8_t{});
    case 2: return f(uint16_t{});
    case 4: return f(uint32_t{});
    case 8: return f(uint64_t{});
    default: base::fail(base::ErrorCode::internal, "no kernel over elements of ", bytes, " bytes");
  }
}

}  // namespace

void range(On on, const void* start, const void* delta, void* y, int64_t n) {
  if (n == 0) return;
  using tensor::DType;
  const bool is_real =
      on.dtype == DType::f32 || on.dtype == DType::f64 || on.dtype == DType::f16 || on.dtype == DType::bf16;
  const Launch grid = flat_launch(on.stream, n);
  if (is_real) {
    launch(on.stream, "range", grid, Range<double>{start, delta, y, on.dtype, n});
  } else {
    launch(on.stream, "range", grid, Range<int64_t>{start, delta, y, on.dtype, n});
  }
}

void eye(On on, void* y, int64_t rows, int64_t columns, int64_t k) {
  if (rows * columns == 0) return;
  launch(on.stream, "eye", flat_launch(on.stream, rows * columns), Eye{y, on.dtype, rows, columns, k});
}

void trilu(tensor::Stream& stream, const TriluArgs& a) {
  const int64_t n = a.count * a.rows * a.columns;
  if (n == 0) return;
  by_unit(a.unit_bytes,
          [&](auto unit) { launch(stream, "trilu", flat_launch(stream, n), Trilu<decltype(unit)>{a}); });
}

void one_hot(tensor::Stream& stream, const OneHotArgs& a) {
  const int64_t n = a.outer * a.depth * a.inner;
  if (n == 0) return;
  by_unit(a.unit_bytes,
          [&](auto unit) { launch(stream, "one_hot", flat_launch(stream, n), OneHot<decltype(unit)>{a}); });
}

void reverse_runs(tensor::Stream& stream, const ReverseArgs& a) {
  const int64_t n = a.time * a.batch * a.row_units;
  if (n == 0) return;
  by_unit(a.unit_bytes, [&](auto unit) {
    launch(stream, "reverse_runs", flat_launch(stream, n), ReverseRuns<decltype(unit)>{a});
  });
}

void pad_grad(On on, const PadGradAxis& a) {
  const int64_t n = a.outer * a.n * a.inner;
  if (n == 0) return;
  const Launch grid = flat_launch(on.stream, n);
  by_float(on.dtype, [&](auto zero) {
    using T = decltype(zero);
    if (a.widens && a.rounds) {
      launch(on.stream, "pad_grad", grid, PadGrad<T, T>{a});
    } else if (a.widens) {
      launch(on.stream, "pad_grad", grid, PadGrad<T, float>{a});
    } else if (a.rounds) {
      launch(on.stream, "pad_grad", grid, PadGrad<float, T>{a});
    } else {
      launch(on.stream, "pad_grad", grid, PadGrad<float, float>{a});
    }
  });
}

}  // namespace trireme::cuda
