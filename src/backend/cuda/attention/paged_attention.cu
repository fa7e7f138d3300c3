// Launchers of attention over a paged key-value cache.
#include "backend/cuda/attention/paged_attention.h"

#include <type_traits>

#include "backend/cuda/attention/paged_any_type.h"
#include "backend/cuda/attention/paged_launch.h"
#include "backend/cuda/attention/paged_mma_kernels.h"
#include "backend/cuda/attention/paged_mma_parts_kernels.h"
#include "backend/cuda/device/types.h"
#include "tensor/blocks/coded_rows.h"

namespace trireme::cuda {

PagedView view_of(const PagedAttentionArgs& a) {
  return {.table = a.table,
          .lengths = a.lengths,
          .starts = a.starts,
          .rows = a.rows,
          .sequences = a.sequences,
          .heads = a.heads,
          .kv_heads = a.kv_heads,
          .dim = a.dim,
          .pages = a.pages,
          .page_tokens = a.page_tokens,
          .most_pages = a.most_pages,
          .window = a.window,
          .row_elements = tensor::row_elements(a.page_type, a.dim),
          .has_float_codes = a.page_type == tensor::DType::f8e4m3fn,
          .group_size = a.heads / a.kv_heads,
          .scale = a.scale,
          .softcap = a.softcap,
          .fault = a.fault,
          .step = a.step};
}

namespace {

/// The workspace holds the states first, then the tickets.
int64_t state_bytes(const PagedAttentionArgs& a) {
  const PagedView view = view_of(a);
  return view.states() * (a.dim + 2) * static_cast<int64_t>(sizeof(float));
}

template <class T, int kDim>
void launch_mma_parts(tensor::Stream& stream, const PagedAttentionArgs& a) {
  using Kernel = PagedMmaParts<T, kDim>;
  const PagedView view = view_of(a);
  const int64_t chunks = Kernel::chunks_of(kFewRows, view.group());
  const int64_t work = a.sequences * a.kv_heads * chunks * view.most_parts();
  if (work == 0) return;
  launch_overlapping(stream, "paged_mma_parts",
                     {blocks_for(cuda_stream(stream), work, 2 * Kernel::kBlocksAtOnce), Kernel::kThreads,
                      Kernel::kSharedBytes},
                     Kernel{view, static_cast<const T*>(a.q), static_cast<const T*>(a.k_pages),
                            static_cast<const T*>(a.v_pages), static_cast<float*>(a.workspace), tickets_of(a),
                            static_cast<T*>(a.y)});
}

template <class T, int kDim>
void launch_mma(tensor::Stream& stream, const PagedAttentionArgs& a) {
  using Kernel = PagedMma<T, kDim>;
  const int64_t group = a.heads / a.kv_heads;
  const int64_t tiles = (a.rows * group / Kernel::kVectors + a.sequences) * a.kv_heads;
  launch(stream, "paged_mma",
         {blocks_for(cuda_stream(stream), tiles, 16), Kernel::kThreads, Kernel::kSharedBytes},
         Kernel{view_of(a), static_cast<const T*>(a.q), static_cast<const T*>(a.k_pages),
                static_cast<const T*>(a.v_pages), static_cast<T*>(a.y)});
}

template <class Q, class T, int kDim>
void attend_pages(tensor::Stream& stream, const PagedAttentionArgs& a) {
  if constexpr (std::is_same_v<Q, T> && sizeof(T) == 2 && kDim <= 128) {
    if (a.dim % 8 == 0) {
      launch_mma_parts<T, kDim>(stream, a);
      if (a.rows <= kFewRows) return;
      if (a.window == 0 && a.softcap == 0) return launch_mma<T, kDim>(stream, a);
      return launch_tiles<Q, T, kDim>(stream, a);
    }
  }
  attend_any<Q, T, kDim>(stream, a);
}

template <class Q, class T>
void by_width(tensor::Stream& stream, const PagedAttentionArgs& a) {
  with_width(a.dim, [&](auto width) { attend_pages<Q, T, width.value>(stream, a); });
}

}  // namespace

int32_t* tickets_of(const PagedAttentionArgs& a) {
  return reinterpret_cast<int32_t*>(static_cast<std::byte*>(a.workspace) + state_bytes(a));
}

/// An upper bound that holds for any number of query vectors per block.
int64_t ticket_count(const PagedAttentionArgs& a) { return a.sequences * kFewRows * a.heads; }

int64_t paged_attention_workspace_bytes(const PagedAttentionArgs& a) {
  return state_bytes(a) + ticket_count(a) * static_cast<int64_t>(sizeof(int32_t));
}

void require_paged(const PagedAttentionArgs& a) {
  base::check(a.dim > 0 && a.dim <= kMostPagedDim && a.heads % a.kv_heads == 0, "paged attention of ",
              a.heads, " heads of ", a.dim, " channels over ", a.kv_heads);
  const bool fits = a.type == a.page_type || a.type == tensor::DType::f32 || tensor::holds_codes(a.page_type);
  base::check(fits, "paged attention of ", tensor::name_of(a.type), " over pages of ",
              tensor::name_of(a.page_type));
}

void attend_prepared(tensor::Stream& stream, const PagedAttentionArgs& a) {
  if (a.sequences == 0) return;
  if (tensor::holds_codes(a.page_type)) return attend_codes(stream, a);
  if (a.type == a.page_type)
    return by_float(a.type, [&](auto zero) { by_width<decltype(zero), decltype(zero)>(stream, a); });
  a.page_type == tensor::DType::bf16 ? by_width<float, BFloat16>(stream, a)
                                     : by_width<float, Half>(stream, a);
}

void paged_attention(tensor::Stream& stream, const PagedAttentionArgs& a) {
  require_paged(a);
  if (a.rows == 0) return;
  by_float(a.type, [&](auto zero) {
    using Q = decltype(zero);
    launch(stream, "prepare_paged", {blocks_for(cuda_stream(stream), a.rows, 8), 128},
           PreparePaged<Q>{view_of(a), tickets_of(a), ticket_count(a), static_cast<Q*>(a.y)});
  });
  attend_prepared(stream, a);
}

void kv_append(tensor::Stream& stream, const KvAppendArgs& a) {
  const int64_t elements = a.tokens * a.kv_heads * a.dim;
  if (elements == 0) return;
  if (tensor::holds_codes(a.page_type)) return append_codes(stream, a);
  by_float(a.type, [&](auto from) {
    by_float(a.page_type, [&](auto to) {
      launch(stream, "kv_append", flat_launch(stream, elements),
             AppendPages<decltype(from), decltype(to)>{a});
    });
  });
}

}  // namespace trireme::cuda
