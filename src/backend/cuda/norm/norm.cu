// Launchers of norms over rows and groups.
#include "backend/cuda/norm/norm.h"

#include "backend/cuda/norm/held_norm_kernels.h"
#include "backend/cuda/norm/norm_kernels.h"
#include "backend/cuda/norm/norm_types.h"
#include "backend/cuda/reduce/column_launch.h"
#include "backend/cuda/reduce/held_launch.h"

namespace trireme::cuda {

namespace {

template <class T, class S, class R>
void launch_norm(tensor::Stream& stream, const RowNormArgs& a) {
  const RowNorm<T, S, R> rows{.x = static_cast<const T*>(a.x),
                              .scale = static_cast<const S*>(a.scale),
                              .bias = static_cast<const S*>(a.bias),
                              .y = static_cast<T*>(a.y),
                              .rounded = static_cast<R*>(a.rounded),
                              .mean = a.mean,
                              .inv_std = a.inv_std,
                              .rows = a.rows,
                              .n = a.n,
                              .epsilon = a.epsilon,
                              .rms = a.rms};
  const char* name = a.rms ? "rms_norm" : "layer_norm";
  if (kHeldOne.holds(a.n)) {
    launch(stream, name, held_launch(stream, a.rows, a.n, kHeldOne), HeldNorm<T, S, R>{rows});
  } else {
    launch(stream, name, row_launch<T>(stream, a.rows, a.n), rows);
  }
}

}  // namespace

void row_norm(tensor::Stream& stream, const RowNormArgs& a) {
  if (a.rows == 0 || a.n == 0) return;
  if (a.rounding.type != tensor::DType::f32) {
    return by_float(a.rounding.type, [&](auto r) { launch_norm<float, float, decltype(r)>(stream, a); });
  }
  by_norm_types(a.types,
                [&](auto x, auto s) { launch_norm<decltype(x), decltype(s), decltype(x)>(stream, a); });
}

void group_norm(tensor::Stream& stream, const GroupNormArgs& a) {
  if (a.rows == 0 || a.n == 0) return;
  by_norm_types(a.types, [&](auto x, auto s) {
    using T = decltype(x);
    using S = decltype(s);
    launch(stream, "group_norm", row_launch<T>(stream, a.rows, a.n),
           GroupNorm<T, S>{.x = static_cast<const T*>(a.x),
                           .scale = static_cast<const S*>(a.scale),
                           .bias = static_cast<const S*>(a.bias),
                           .y = static_cast<T*>(a.y),
                           .rows = a.rows,
                           .n = a.n,
                           .points = a.points,
                           .groups = a.groups,
                           .epsilon = a.epsilon});
  });
}

int64_t row_norm_grad_workspace_bytes(int64_t rows, int64_t n) {
  if (kHeldMany.holds(n)) return 2 * HeldPieces::of(rows).pieces * n * static_cast<int64_t>(sizeof(float));
  return rows * static_cast<int64_t>(sizeof(RowMoments)) +
         2 * ColumnGrid::of(rows, n, 1).pieces * n * static_cast<int64_t>(sizeof(float));
}

namespace {

template <class T, class S, class D>
void scale_gradients(tensor::Stream& stream, const RowNormGradArgs& a, const RowMoments* moments,
                     float* sums) {
  const ColumnGrid grid = ColumnGrid::of(a.rows, a.n, kPack<T>);
  if (a.rows > 0) {
    launch(
        stream, "norm_grad_columns", column_launch<T>(stream, grid),
        RowNormColumns<T, D>{static_cast<const D*>(a.dy), static_cast<const T*>(a.x), moments, sums, grid});
  }
  void* const results[] = {a.dscale, a.dbias};
  for (int64_t i = 0; i < 2; ++i) {
    if (results[i] == nullptr) continue;
    launch(stream, "sum_pieces", flat_launch(stream, a.n),
           SumPiecesInto<S>{sums + i * grid.pieces * a.n, static_cast<S*>(results[i]), grid.pieces, a.n});
  }
}

/// One pass over rows that also sums columns in pieces, then a launch that joins the pieces.
template <class T, class S, class D, class R>
void held_norm_grad(tensor::Stream& stream, const RowNormGradArgs& a, const RowNormGrad<T, S, D, R>& rows) {
  const HeldPieces pieces = HeldPieces::of(a.rows);
  const bool adds_up = a.dscale != nullptr || a.dbias != nullptr;
  auto* sums = static_cast<float*>(a.workspace);
  if (a.rows > 0) {
    launch(stream, "norm_grad", held_launch(stream, pieces.pieces, a.n, kHeldMany),
           HeldNormGrad<T, S, D, R>{rows, pieces, adds_up ? sums : nullptr});
  }
  if (!adds_up) return;
  using Join = JoinPiecesInto<S>;
  launch(
      stream, "join_columns",
      {blocks_for(cuda_stream(stream), 2 * ((a.n + kWarp - 1) / kWarp)), Join::kThreads, Join::kSharedBytes},
      Join{sums, {static_cast<S*>(a.dscale), static_cast<S*>(a.dbias)}, pieces.pieces, a.n});
}

template <class T, class S, class D, class R>
void launch_norm_grad(tensor::Stream& stream, const RowNormGradArgs& a) {
  auto* moments = static_cast<RowMoments*>(a.workspace);
  const RowNormGrad<T, S, D, R> rows{.dy = static_cast<const D*>(a.dy),
                                     .x = static_cast<const T*>(a.x),
                                     .scale = static_cast<const S*>(a.scale),
                                     .add = static_cast<const T*>(a.add),
                                     .dx = static_cast<T*>(a.dx),
                                     .rounded = static_cast<R*>(a.rounded),
                                     .moments = moments,
                                     .rows = a.rows,
                                     .n = a.n,
                                     .epsilon = a.epsilon,
                                     .rms = a.rms};
  if (kHeldMany.holds(a.n)) return held_norm_grad(stream, a, rows);
  if (a.rows > 0) launch(stream, "norm_grad", row_launch<T>(stream, a.rows, a.n), rows);
  if (a.dscale == nullptr && a.dbias == nullptr) return;
  scale_gradients<T, S, D>(stream, a, moments, reinterpret_cast<float*>(moments + a.rows));
}

}  // namespace

void row_norm_grad(tensor::Stream& stream, const RowNormGradArgs& a) {
  if (a.n == 0) return;
  if (a.rounding.type != tensor::DType::f32) {
    return by_float(a.rounding.type, [&](auto r) {
      using R = decltype(r);
      a.rounding.dy ? launch_norm_grad<float, float, R, R>(stream, a)
                    : launch_norm_grad<float, float, float, R>(stream, a);
    });
  }
  by_norm_types(a.types, [&](auto x, auto s) {
    using T = decltype(x);
    launch_norm_grad<T, decltype(s), T, T>(stream, a);
  });
}

}  // namespace trireme::cuda
