// Launchers of attention in a decoding step.
#include "backend/cuda/attention/decode_attention.h"

#include <type_traits>

#include "backend/cuda/attention/paged_launch.h"
#include "backend/cuda/attention/rotate_append_kernels.h"
#include "backend/cuda/device/types.h"

namespace trireme::cuda {
namespace {

/// The rotated queries are stored after the workspace of paged attention.
int64_t queries_at(const PagedAttentionArgs& a) {
  return (paged_attention_workspace_bytes(a) + 255) / 256 * 256;
}

template <class Q, class T>
void rotate_append(tensor::Stream& stream, const DecodeAttentionArgs& a, void* queries) {
  const PagedAttentionArgs& p = a.attention;
  const PreparePaged<Q> prepare{view_of(p), tickets_of(p), ticket_count(p), static_cast<Q*>(p.y)};
  const Launch grid{blocks_for(cuda_stream(stream), p.rows, 4), 512};
  if constexpr (!std::is_same_v<Q, float>) {
    if (!a.angles_f32)
      return launch_overlapping(stream, "rotate_append", grid,
                                RotateAppend<Q, T, Q>{a, prepare, static_cast<Q*>(queries)});
  }
  launch_overlapping(stream, "rotate_append", grid,
                     RotateAppend<Q, T, float>{a, prepare, static_cast<Q*>(queries)});
}

}  // namespace

int64_t decode_attention_workspace_bytes(const DecodeAttentionArgs& a) {
  const PagedAttentionArgs& p = a.attention;
  return queries_at(p) + tensor::bytes_of(p.type, p.rows * p.heads * p.dim);
}

void decode_attention(tensor::Stream& stream, const DecodeAttentionArgs& a) {
  PagedAttentionArgs p = a.attention;
  require_paged(p);
  if (p.rows == 0) return;
  void* queries = static_cast<std::byte*>(p.workspace) + queries_at(p);
  by_float(p.type, [&](auto of_queries) {
    by_float(p.page_type, [&](auto of_pages) {
      using Q = decltype(of_queries);
      using T = decltype(of_pages);
      if constexpr (std::is_same_v<Q, T> || std::is_same_v<Q, float>) rotate_append<Q, T>(stream, a, queries);
    });
  });
  p.q = queries;
  attend_prepared(stream, p);
}

}  // namespace trireme::cuda
