// Launchers of batch norm.
#include "backend/cuda/norm/batch_norm_grad_kernels.h"
#include "backend/cuda/norm/batch_norm_kernels.h"
#include "backend/cuda/norm/batch_norm_row_grad_kernels.h"
#include "backend/cuda/norm/batch_norm_row_kernels.h"
#include "backend/cuda/norm/norm_types.h"
#include "backend/cuda/reduce/column_launch.h"

namespace trireme::cuda {
namespace {

template <class T, class Args>
Launch elements_launch(tensor::Stream& stream, const Args& a) {
  return flat_launch(stream, (a.outer * a.channels * a.inner + kPack<T> - 1) / kPack<T>);
}

/// One warp per plane.
Launch planes_launch(tensor::Stream& stream, int64_t planes) {
  return {blocks_for(cuda_stream(stream), (planes + 7) / 8), 8 * kWarp};
}

/// How sums are cut into pieces: a grid of columns with channels last, else one piece per index of `outer`.
struct Pieces {
  ColumnGrid grid;
  PieceCounts counts;
};
Pieces pieces_of(int64_t outer, int64_t channels, int64_t inner, int pack) {
  if (inner > 1) return {{}, {outer, inner, outer * inner}};
  const ColumnGrid grid = ColumnGrid::of(outer, channels, pack);
  return {grid, {grid.pieces, grid.piece_rows, outer}};
}

template <class Args>
ChannelExtents extents_of(const Args& a) {
  return {a.outer, a.channels, a.inner};
}

Launch join_launch(tensor::Stream& stream, int64_t channels, int64_t shared_bytes) {
  return {blocks_for(cuda_stream(stream), (channels + kWarp - 1) / kWarp), JoinMoments::kThreads,
          shared_bytes};
}

/// Whether channels are last and fill whole packs.
template <class T, class Args>
bool has_rows(const Args& a) {
  return a.inner == 1 && a.channels % kPack<T> == 0;
}

Launch rows_launch(tensor::Stream& stream, const ChannelRows& walk) {
  return {walk.blocks(blocks_for(cuda_stream(stream), INT64_MAX, 8)), ChannelRows::kThreads};
}

}  // namespace

void channel_norm(tensor::Stream& stream, const ChannelNormArgs& a) {
  if (a.outer * a.channels * a.inner == 0) return;
  by_norm_types(a.types, [&](auto x, auto s) {
    using T = decltype(x);
    using S = decltype(s);
    launch(
        stream, "batch_norm", elements_launch<T>(stream, a),
        ChannelNorm<T, S>{static_cast<const T*>(a.x), static_cast<const S*>(a.scale),
                          static_cast<const S*>(a.bias), static_cast<const S*>(a.mean),
                          static_cast<const S*>(a.variance), static_cast<T*>(a.y), extents_of(a), a.epsilon});
  });
}

int64_t batch_norm_workspace_bytes(int64_t outer, int64_t channels, int64_t inner) {
  // Two sums per piece and channel, followed by two totals and three statistics per channel.
  return (2 * pieces_of(outer, channels, inner, 1).counts.pieces + 5) * channels *
         static_cast<int64_t>(sizeof(float));
}

void batch_norm_train(tensor::Stream& stream, const BatchNormArgs& a) {
  if (a.outer * a.channels * a.inner == 0) return;
  by_norm_types(a.types, [&](auto zero, auto s) {
    using T = decltype(zero);
    using S = decltype(s);
    const auto* x = static_cast<const T*>(a.x);
    auto* parts = static_cast<float*>(a.workspace);
    const Pieces p = pieces_of(a.outer, a.channels, a.inner, kPack<T>);
    float* spare = parts + 2 * p.counts.pieces * a.channels;
    float* mean = a.mean != nullptr ? a.mean : spare;
    float* inv_std = a.inv_std != nullptr ? a.inv_std : spare + a.channels;
    float* variance = a.variance != nullptr ? a.variance : spare + 2 * a.channels;
    if (a.inner == 1) {
      launch(stream, "batch_norm_moments", column_launch<T>(stream, p.grid),
             ChannelMoments<T>{x, parts, p.grid});
    } else {
      launch(stream, "batch_norm_moments", planes_launch(stream, a.outer * a.channels),
             PlaneMoments<T>{x, parts, extents_of(a)});
    }
    launch(stream, "batch_norm_join", join_launch(stream, a.channels, JoinMoments::kSharedBytes),
           JoinMoments{parts, mean, inv_std, variance, a.channels, p.counts, a.epsilon});
    const BatchNormApply<T, S> apply{x,
                                     static_cast<const T*>(a.residual),
                                     static_cast<const S*>(a.scale),
                                     static_cast<const S*>(a.bias),
                                     mean,
                                     inv_std,
                                     static_cast<T*>(a.y),
                                     extents_of(a),
                                     a.relu};
    if (!has_rows<T>(a)) return launch(stream, "batch_norm_apply", elements_launch<T>(stream, a), apply);
    const ChannelRows walk = ChannelRows::of(a.outer, a.channels, kPack<T>);
    launch(stream, "batch_norm_apply", rows_launch(stream, walk), BatchNormRows<T, S>{apply, walk});
  });
}

void batch_norm_grad(tensor::Stream& stream, const BatchNormGradArgs& a) {
  if (a.outer * a.channels * a.inner == 0) return;
  by_norm_types(a.types, [&](auto zero, auto s) {
    using T = decltype(zero);
    using S = decltype(s);
    const BatchNormBehind<T, S> in{static_cast<const T*>(a.dy),
                                   static_cast<const T*>(a.more),
                                   static_cast<const T*>(a.x),
                                   static_cast<const T*>(a.y),
                                   static_cast<const S*>(a.scale),
                                   static_cast<const S*>(a.bias),
                                   a.mean,
                                   a.inv_std,
                                   a.relu};
    auto* parts = static_cast<float*>(a.workspace);
    const Pieces p = pieces_of(a.outer, a.channels, a.inner, kPack<T>);
    float* totals = parts + 2 * p.counts.pieces * a.channels;
    const BatchNormGradSums<T, S> sums{in, parts, p.grid};
    if (has_rows<T>(a)) {
      launch(stream, "batch_norm_grad_sums", column_launch<T>(stream, p.grid),
             BatchNormGradRowSums<T, S>{sums});
    } else if (a.inner == 1) {
      launch(stream, "batch_norm_grad_sums", column_launch<T>(stream, p.grid), sums);
    } else {
      launch(stream, "batch_norm_grad_sums", planes_launch(stream, a.outer * a.channels),
             BatchNormPlaneSums<T, S>{in, parts, extents_of(a)});
    }
    launch(stream, "batch_norm_grad_join", join_launch(stream, a.channels, JoinGradSums<S>::kSharedBytes),
           JoinGradSums<S>{parts, totals, static_cast<S*>(a.dscale), static_cast<S*>(a.dbias), a.channels,
                           p.counts.pieces});
    const BatchNormGradApply<T, S> apply{in, totals, static_cast<T*>(a.dx), static_cast<T*>(a.dresidual),
                                         extents_of(a)};
    if (!has_rows<T>(a)) return launch(stream, "batch_norm_grad_apply", elements_launch<T>(stream, a), apply);
    const ChannelRows walk = ChannelRows::of(a.outer, a.channels, kPack<T>);
    launch(stream, "batch_norm_grad_apply", rows_launch(stream, walk), BatchNormGradRows<T, S>{apply, walk});
  });
}

}  // namespace trireme::cuda
