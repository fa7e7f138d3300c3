// Launchers of products of few rows.
#include "backend/cuda/quant/row_products.h"

#include "backend/cuda/quant/row_product_kernels.h"
#include "backend/cuda/quant/row_tile_kernels.h"
#include "backend/cuda/device/types.h"
#include "base/error.h"

namespace trireme::cuda {
namespace {

template <class T, int kBits, int kRows, bool kNorm>
void run(On on, const RowProductArgs& a) {
  using Kernel = RowProducts<T, kBits, kRows, kNorm>;
  constexpr int kWarps = Kernel::kThreads / kWarp;
  // Every block normalises the rows itself, so fewer blocks are launched: each then has enough weights to
  // read.
  const int64_t work = (Kernel::pairs(a) + kWarps - 1) / kWarps;
  const int64_t shared = kNorm ? kReduceScratchBytes + a.rows * a.k * static_cast<int64_t>(sizeof(T)) : 0;
  launch(on.stream, "row_products",
         {blocks_for(cuda_stream(on.stream), work, kNorm ? 2 : 4), Kernel::kThreads, shared}, Kernel{a});
}

/// 16-bit weights: on the tensor cores.
template <class T, bool kGated, bool kNorm>
void run_tiles(On on, const RowProductArgs& a) {
  using Kernel = RowTiles<T, kGated, kNorm>;
  const Launch grid{Kernel::tiles(a), Kernel::kThreads, Kernel::shared_bytes(a)};
  a.is_constant ? launch_overlapping(on.stream, "row_tiles", grid, Kernel{a})
                : launch(on.stream, "row_tiles", grid, Kernel{a});
}
template <class T>
void tiles_by_form(On on, const RowProductArgs& a) {
  if (a.norm_scale == nullptr)
    return a.gated ? run_tiles<T, true, false>(on, a) : run_tiles<T, false, false>(on, a);
  a.gated ? run_tiles<T, true, true>(on, a) : run_tiles<T, false, true>(on, a);
}

template <class T, int kBits, bool kNorm>
void by_rows(On on, const RowProductArgs& a) {
  if (a.rows == 1) return run<T, kBits, 1, kNorm>(on, a);
  a.rows <= 4 ? run<T, kBits, 4, kNorm>(on, a) : run<T, kBits, kMostProductRows, kNorm>(on, a);
}

template <class T, int kBits>
void by_norm(On on, const RowProductArgs& a) {
  a.norm_scale == nullptr ? by_rows<T, kBits, false>(on, a) : by_rows<T, kBits, true>(on, a);
}

}  // namespace

void row_products(On on, const RowProductArgs& a) {
  base::check(a.rows <= kMostProductRows && a.count >= 1 && a.count <= kMostRowProducts, "products of ",
              a.rows, " rows by ", a.count, " weights");
  if (a.rows == 0 || a.weights[0].n == 0) return;
  by_float(on.dtype, [&](auto zero) {
    using T = decltype(zero);
    if constexpr (sizeof(T) == 2) {
      if (a.bits == 0) return tiles_by_form<T>(on, a);
    } else {
      if (a.bits == 0) return by_norm<T, 0>(on, a);
    }
    a.bits == 8 ? by_norm<T, 8>(on, a) : by_norm<T, 4>(on, a);
  });
}

}  // namespace trireme::cuda
