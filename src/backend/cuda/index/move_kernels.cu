// Launchers of the kernels that move elements, of dropout and of quantized matrix-vector products.
#include "backend/cuda/index/move_kernels.h"

#include "backend/cuda/dense/decode_kernels.h"
#include "backend/cuda/elementwise/flat_kernels.h"
#include "backend/cuda/kernels.h"
#include "backend/cuda/device/launch.h"
#include "base/error.h"

namespace trireme::cuda {
namespace {

constexpr int kThreads = 256;

const CudaStream& stream_of(On on) { return static_cast<const CudaStream&>(on.stream); }

template <class T>
void run_dropout(On on, const DropoutArgs& a) {
  if (a.n == 0) return;
  launch(on.stream, "dropout", {blocks_for(stream_of(on), a.n / (4 * kThreads) + 1), kThreads},
         Dropout<T>{static_cast<const T*>(a.x), static_cast<T*>(a.y), a.n, a.first, a.seed, a.stream,
                    a.threshold, a.scale});
}

/// Moved as unsigned integers of the element's size.
template <class T>
void run_transpose(On on, const void* x, void* y, const int64_t (&e)[3]) {
  constexpr int64_t kTile = Transpose<T>::kTile;
  const int64_t tiles = e[0] * ((e[1] + kTile - 1) / kTile) * ((e[2] + kTile - 1) / kTile);
  if (tiles == 0) return;
  launch(on.stream, "transpose",
         {blocks_for(stream_of(on), tiles, 16), Transpose<T>::kThreads, Transpose<T>::kSharedBytes},
         Transpose<T>{static_cast<const T*>(x), static_cast<T*>(y), e[0], e[1], e[2]});
}

template <class T>
void run_gather(On on, const GatherArgs& a) {
  if (a.count == 0 || a.n == 0) return;
  launch(on.stream, "gather_rows", {blocks_for(stream_of(on), a.count, 16), kThreads},
         GatherRows<T>{static_cast<const T*>(a.table), a.index, static_cast<T*>(a.y), a.count, a.n, a.first,
                       a.held});
}

WeightGroups groups_of(const QuantizedArgs& a) { return {a.scale, a.zero, a.k, a.group}; }

template <class T, int kBits, int kMost>
void run_quantized(On on, const QuantizedArgs& a) {
  constexpr int kWarps = kThreads / kWarp;
  launch(on.stream, "quantized_rows",
         {blocks_for(stream_of(on), (a.rows + kWarps - 1) / kWarps, 8), kThreads},
         QuantizedRows<T, kBits, kMost>{static_cast<const T*>(a.x), a.w, groups_of(a),
                                        static_cast<const T*>(a.bias), static_cast<T*>(a.y), a.rows, a.k,
                                        a.batch});
}
template <class T, int kBits>
void run_batch(On on, const QuantizedArgs& a) {
  if (a.batch == 1) return run_quantized<T, kBits, 1>(on, a);
  a.batch <= 4 ? run_quantized<T, kBits, 4>(on, a) : run_quantized<T, kBits, kQuantizedBatch>(on, a);
}

template <class F>
void by_type(tensor::DType dtype, F f) {
  switch (dtype) {
    case tensor::DType::f32: return f(float{});
    case tensor::DType::f16: return f(Half{});
    case tensor::DType::bf16: return f(BFloat16{});
    default: base::fail(base::ErrorCode::internal, "no CUDA kernel over ", tensor::name_of(dtype));
  }
}

}  // namespace

void dropout(On on, const DropoutArgs& a) {
  by_type(on.dtype, [&](auto zero) { run_dropout<decltype(zero)>(on, a); });
}

void transpose(On on, const void* x, void* y, const int64_t (&extents)[3]) {
  switch (tensor::bytes_of(on.dtype, 1)) {
    case 1: return run_transpose<uint8_t>(on, x, y, extents);
    case 2: return run_transpose<uint16_t>(on, x, y, extents);
    case 4: return run_transpose<uint32_t>(on, x, y, extents);
    default: return run_transpose<uint64_t>(on, x, y, extents);
  }
}

void gather_rows(On on, const GatherArgs& a) {
  by_type(on.dtype, [&](auto zero) { run_gather<decltype(zero)>(on, a); });
}

void quantized_rows(On on, const QuantizedArgs& a) {
  if (a.rows == 0 || a.batch == 0) return;
  base::check(a.batch >= 1 && a.batch <= kQuantizedBatch, "a batch of ", a.batch);
  by_type(on.dtype, [&](auto zero) {
    using T = decltype(zero);
    a.bits == 8 ? run_batch<T, 8>(on, a) : run_batch<T, 4>(on, a);
  });
}

void dequantize_rows(On on, const QuantizedArgs& a, int64_t first, int64_t count, void* y) {
  if (count == 0) return;
  const int64_t packs = a.k * a.bits / 8 / 16;
  const uint8_t* from = a.w + first * packs * 16;
  const Launch grid{blocks_for(stream_of(on), (count * packs + kThreads - 1) / kThreads), kThreads};
  by_type(on.dtype, [&](auto zero) {
    using T = decltype(zero);
    if (a.bits == 8) {
      launch(on.stream, "dequantize_rows", grid,
             DequantizeRows<T, 8>{from, groups_of(a), static_cast<T*>(y), count, a.k, first});
    } else {
      launch(on.stream, "dequantize_rows", grid,
             DequantizeRows<T, 4>{from, groups_of(a), static_cast<T*>(y), count, a.k, first});
    }
  });
}

}  // namespace trireme::cuda
