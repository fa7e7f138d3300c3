// Launches of attention over pages that take any type of queries and pages.
#pragma once

#include <type_traits>

#include "backend/cuda/attention/paged_decode_kernels.h"
#include "backend/cuda/attention/paged_launch.h"
#include "backend/cuda/attention/paged_tile_kernels.h"
#include "backend/cuda/device/types.h"

namespace trireme::cuda {

template <class Q, class T, int kDim, int kVectors>
void launch_parts(tensor::Stream& stream, const PagedAttentionArgs& a) {
  using Kernel = PagedParts<Q, T, kDim, kVectors>;
  const PagedView view = view_of(a);
  const int64_t work = a.sequences * a.kv_heads * Kernel::chunks_of(view) * view.most_parts();
  if (work == 0) return;
  launch(stream, "paged_attention",
         {blocks_for(cuda_stream(stream), work, 16), Kernel::kThreads, Kernel::kSharedBytes},
         Kernel{view, static_cast<const Q*>(a.q), static_cast<const T*>(a.k_pages),
                static_cast<const T*>(a.v_pages), static_cast<float*>(a.workspace), tickets_of(a),
                static_cast<Q*>(a.y)});
}

template <class Q, class T, int kDim>
void launch_tiles(tensor::Stream& stream, const PagedAttentionArgs& a) {
  using Kernel = PagedTiles<Q, T, kDim>;
  const int64_t tiles = (a.rows / Kernel::kRows + a.sequences) * a.heads;
  launch(stream, "paged_tiles",
         {blocks_for(cuda_stream(stream), tiles, 16), Kernel::kThreads, Kernel::kSharedBytes},
         Kernel{view_of(a), static_cast<const Q*>(a.q), static_cast<const T*>(a.k_pages),
                static_cast<const T*>(a.v_pages), static_cast<Q*>(a.y)});
}

/// Sequences of few new tokens and, where there may be such, those of more.
template <class Q, class T, int kDim>
void attend_any(tensor::Stream& stream, const PagedAttentionArgs& a) {
  a.heads == a.kv_heads ? launch_parts<Q, T, kDim, 1>(stream, a) : launch_parts<Q, T, kDim, 4>(stream, a);
  if (a.rows > kFewRows) launch_tiles<Q, T, kDim>(stream, a);
}

/// Calls f with the least width of kernels that holds a head, as a type.
template <class F>
void with_width(int64_t dim, F f) {
  if (dim <= 64) {
    f(std::integral_constant<int, 64>());
  } else if (dim <= 128) {
    f(std::integral_constant<int, 128>());
  } else {
    f(std::integral_constant<int, 256>());
  }
}

}  // namespace trireme::cuda
