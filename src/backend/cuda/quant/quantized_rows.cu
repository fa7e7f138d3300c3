// Launchers of products with weights that are stored in 8 or 4 bits.
#include "backend/cuda/quant/quantized_rows.h"

#include "backend/cuda/device/types.h"
#include "backend/cuda/quant/quantized_rows_kernels.h"
#include "base/error.h"

namespace trireme::cuda {
namespace {

constexpr int kThreads = 256;

WeightGroups groups_of(const QuantizedArgs& a) { return {a.scale, a.zero, a.k, a.group}; }

template <class T, int kBits, int kMost>
void run_quantized(On on, const QuantizedArgs& a) {
  constexpr int kWarps = kThreads / kWarp;
  launch(on.stream, "quantized_rows",
         {blocks_for(cuda_stream(on.stream), (a.rows + kWarps - 1) / kWarps, 8), kThreads},
         QuantizedRows<T, kBits, kMost>{static_cast<const T*>(a.x), a.w, groups_of(a),
                                        static_cast<const T*>(a.bias), static_cast<T*>(a.y), a.rows, a.k,
                                        a.batch});
}
template <class T, int kBits>
void run_batch(On on, const QuantizedArgs& a) {
  if (a.batch == 1) return run_quantized<T, kBits, 1>(on, a);
  a.batch <= 4 ? run_quantized<T, kBits, 4>(on, a) : run_quantized<T, kBits, kQuantizedBatch>(on, a);
}

}  // namespace

void quantized_rows(On on, const QuantizedArgs& a) {
  if (a.rows == 0 || a.batch == 0) return;
  base::check(a.batch >= 1 && a.batch <= kQuantizedBatch, "a batch of ", a.batch);
  by_float(on.dtype, [&](auto zero) {
    using T = decltype(zero);
    a.bits == 8 ? run_batch<T, 8>(on, a) : run_batch<T, 4>(on, a);
  });
}

void dequantize_rows(On on, const QuantizedArgs& a, int64_t first, int64_t count, void* y) {
  if (count == 0) return;
  const int64_t packs = a.k * a.bits / 8 / 16;
  const uint8_t* from = a.w + first * packs * 16;
  const Launch grid{blocks_for(cuda_stream(on.stream), (count * packs + kThreads - 1) / kThreads), kThreads};
  by_float(on.dtype, [&](auto zero) {
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
