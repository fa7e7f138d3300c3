// Launchers of attention: whole, its gradient, rotary embedding.
#include "backend/cuda/attention.h"

#include "backend/cuda/attention_grad_kernels.h"
#include "backend/cuda/attention_kernels.h"
#include "backend/cuda/rotary_kernels.h"
#include "backend/cuda/types.h"

namespace trireme::cuda {
namespace {

MaskKind mask_kind(const AttentionMask& mask) {
  using tensor::DType;
  if (!mask.given) return MaskKind::none;
  switch (mask.type) {
    case DType::f32: return MaskKind::f32;
    case DType::f16: return MaskKind::f16;
    case DType::bf16: return MaskKind::bf16;
    case DType::boolean:
    case DType::i8:
    case DType::u8: return MaskKind::bytes;
    case DType::i32: return MaskKind::words;
    case DType::i64: return MaskKind::wide;
    default:
      base::fail(base::ErrorCode::internal, "no mask of ", tensor::name_of(mask.type), " on the device");
  }
}

AttentionView view_of(const AttentionShape& s, const void* mask, const int64_t* lengths) {
  return {.batch = s.batch,
          .heads = s.heads,
          .kv_heads = s.kv_heads,
          .queries = s.queries,
          .keys = s.keys,
          .head_dim = s.head_dim,
          .value_dim = s.value_dim,
          .q = s.q,
          .k = s.k,
          .v = s.v,
          .y = s.y,
          .mask_kind = mask_kind(s.mask),
          .mask_keeps = s.mask.keeps,
          .mask_batch = s.mask.batch,
          .mask_head = s.mask.head,
          .mask_query = s.mask.query,
          .mask_keys = s.mask.keys,
          .mask = mask,
          .scale = s.scale,
          .softcap = s.softcap,
          .causal = s.causal,
          .offset = s.offset,
          .left = s.left,
          .right = s.right,
          .lengths = s.has_lengths ? lengths : nullptr,
          .ends_at_length = s.has_lengths && s.ends_at_length};
}

/// f(std::integral_constant) of the smallest tile that holds the channels.
template <class F>
void by_dim(int64_t dim, F f) {
  if (dim <= 64) return f(std::integral_constant<int, 64>{});
  if (dim <= 128) return f(std::integral_constant<int, 128>{});
  base::check(dim <= kMostHeadDim, "a head of ", dim, " channels on the device");
  f(std::integral_constant<int, 256>{});
}

template <class Kernel>
void launch_tiles(tensor::Stream& stream, const char* name, int64_t tiles, const Kernel& kernel) {
  launch(stream, name,
         {blocks_for(cuda_stream(stream), tiles, 16), Kernel::kMostThreads, Kernel::kSharedBytes}, kernel);
}

int64_t tiles_of(int64_t rows) { return (rows + AttentionTile<64>::kRows - 1) / AttentionTile<64>::kRows; }

}  // namespace

void attend(tensor::Stream& stream, const AttentionShape& s, const AttentionPointers& p) {
  const int64_t tiles = s.batch * s.heads * tiles_of(s.queries);
  if (tiles == 0 || s.value_dim == 0) return;
  const AttentionView view = view_of(s, p.mask, p.lengths);
  by_float(s.type, [&](auto zero) {
    using T = decltype(zero);
    by_dim(std::max(s.head_dim, s.value_dim), [&](auto dim) {
      launch_tiles(stream, "attend", tiles,
                   Attend<T, dim()>{view, static_cast<const T*>(p.q), static_cast<const T*>(p.k),
                                    static_cast<const T*>(p.v), static_cast<T*>(p.y), p.lse});
    });
  });
}

int64_t attention_grad_workspace_bytes(const AttentionShape& s) {
  return s.batch * s.heads * s.queries * static_cast<int64_t>(sizeof(float));
}

void attend_grad(tensor::Stream& stream, const AttentionShape& s, const AttentionGradPointers& p,
                 void* workspace) {
  const int64_t rows = s.batch * s.heads * s.queries;
  const AttentionView view = view_of(s, p.mask, nullptr);
  auto* delta = static_cast<float*>(workspace);
  by_float(s.type, [&](auto zero) {
    using T = decltype(zero);
    const auto *q = static_cast<const T*>(p.q), *k = static_cast<const T*>(p.k);
    const auto *v = static_cast<const T*>(p.v), *dy = static_cast<const T*>(p.dy);
    if (rows > 0) {
      launch(stream, "attention_delta", flat_launch(stream, rows * kWarp),
             AttentionDelta<T>{view, static_cast<const T*>(p.y), dy, delta});
    }
    by_dim(std::max(s.head_dim, s.value_dim), [&](auto dim) {
      if (rows > 0) {
        launch_tiles(stream, "attend_grad_queries", s.batch * s.heads * tiles_of(s.queries),
                     AttendGradQueries<T, dim()>{view, q, k, v, dy, p.lse, delta, static_cast<T*>(p.dq)});
      }
      const int64_t tiles = s.batch * s.kv_heads * tiles_of(s.keys);
      if (tiles > 0) {
        launch_tiles(stream, "attend_grad_keys", tiles,
                     AttendGradKeys<T, dim()>{view, q, k, v, dy, p.lse, delta, static_cast<T*>(p.dk),
                                              static_cast<T*>(p.dv)});
      }
    });
  });
}

void rotate_pairs(tensor::Stream& stream, tensor::DType type, const RotaryArgs& a) {
  const int64_t items = a.batch * a.seq * a.heads * (a.dim - a.rotated / 2);
  if (items == 0) return;
  by_float(type, [&](auto zero) {
    launch(stream, "rotary_embedding", flat_launch(stream, items), RotatePairs<decltype(zero)>{a});
  });
}

void append_present(tensor::Stream& stream, tensor::DType type, const PresentArgs& a) {
  const int64_t elements = a.batch * a.heads * (a.past_tokens + a.fresh_tokens) * a.dim;
  if (elements == 0) return;
  by_float(type, [&](auto zero) {
    launch(stream, "append_present", flat_launch(stream, elements), AppendPresent<decltype(zero)>{a});
  });
}

}  // namespace trireme::cuda
