// Launchers of attention, its gradient, and rotary embedding.
#include "backend/cuda/attention/attention.h"

#include "backend/cuda/attention/attention_grad_keys.h"
#include "backend/cuda/attention/attention_grad_queries.h"
#include "backend/cuda/attention/attention_kernels.h"
#include "backend/cuda/attention/rotary_kernels.h"
#include "backend/cuda/device/types.h"

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
  base::check(s.keys < int64_t{1} << 31, "attention over ", s.keys, " keys on the device");
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

/// Whether every row of a head at `at` is aligned to 16 bytes and consists of whole 16-byte packs.
bool is_packed(const void* at, const AttentionStrides& strides, int64_t channels, tensor::DType type) {
  const int64_t pack = 16 / tensor::bytes_of(type, 1);
  return reinterpret_cast<uintptr_t>(at) % 16 == 0 && channels % pack == 0 && strides.batch % pack == 0 &&
         strides.seq % pack == 0 && strides.head % pack == 0;
}

/// Calls f(std::integral_constant) with the smallest tile width that holds the channels.
template <class F>
void by_dim(int64_t dim, F f) {
  if (dim <= 32) return f(std::integral_constant<int, 32>{});
  if (dim <= 64) return f(std::integral_constant<int, 64>{});
  if (dim <= 128) return f(std::integral_constant<int, 128>{});
  base::check(dim <= kMostHeadDim, "a head of ", dim, " channels on the device");
  f(std::integral_constant<int, 256>{});
}

template <class Kernel>
void launch_tiles(tensor::Stream& stream, const char* name, int64_t tiles, const Kernel& kernel) {
  static_assert(Kernel::kSharedBytes <= kMostSharedBytes);
  launch(stream, name,
         {blocks_for(cuda_stream(stream), tiles, 16), Kernel::kMostThreads, Kernel::kSharedBytes}, kernel);
}

int64_t tiles_of(int64_t rows, int rows_of_tile) { return (rows + rows_of_tile - 1) / rows_of_tile; }

}  // namespace

void attend(tensor::Stream& stream, const AttentionShape& s, const AttentionPointers& p) {
  if (s.batch * s.heads * s.queries == 0 || s.value_dim == 0) return;
  AttentionView view = view_of(s, p.mask, p.lengths);
  view.packed = {.q = is_packed(p.q, s.q, s.head_dim, s.type),
                 .k = is_packed(p.k, s.k, s.head_dim, s.type),
                 .v = is_packed(p.v, s.v, s.value_dim, s.type),
                 .y = is_packed(p.y, s.y, s.value_dim, s.type)};
  by_float(s.type, [&](auto zero) {
    using T = decltype(zero);
    by_dim(std::max(s.head_dim, s.value_dim), [&](auto dim) {
      using Kernel = Attend<T, dim()>;
      launch_tiles(stream, "attend", s.batch * s.heads * tiles_of(s.queries, Kernel::Tile::kRows),
                   Kernel{view, static_cast<const T*>(p.q), static_cast<const T*>(p.k),
                          static_cast<const T*>(p.v), static_cast<T*>(p.y), p.lse});
    });
  });
}

int64_t attention_grad_workspace_bytes(const AttentionShape& s) {
  return s.batch * s.heads * s.queries * static_cast<int64_t>(sizeof(float));
}

namespace {

template <class T, int kDim>
void launch_grad(tensor::Stream& stream, const AttentionView& view, const AttentionGradPointers& p,
                 const float* delta) {
  const auto *q = static_cast<const T*>(p.q), *k = static_cast<const T*>(p.k);
  const auto *v = static_cast<const T*>(p.v), *dy = static_cast<const T*>(p.dy);
  using Queries = AttendGradQueries<T, kDim>;
  using Keys = AttendGradKeys<T, kDim>;
  const int64_t query_tiles = view.batch * view.heads * tiles_of(view.queries, Queries::Tile::kRows);
  if (query_tiles > 0) {
    launch_tiles(stream, "attend_grad_queries", query_tiles,
                 Queries{view, q, k, v, dy, p.lse, delta, static_cast<T*>(p.dq)});
  }
  const int64_t key_tiles = view.batch * view.kv_heads * tiles_of(view.keys, Keys::Tile::kRows);
  if (key_tiles > 0) {
    launch_tiles(stream, "attend_grad_keys", key_tiles,
                 Keys{view, q, k, v, dy, p.lse, delta, static_cast<T*>(p.dk), static_cast<T*>(p.dv)});
  }
}

}  // namespace

void attend_grad(tensor::Stream& stream, const AttentionShape& s, const AttentionGradPointers& p,
                 void* workspace) {
  const int64_t rows = s.batch * s.heads * s.queries;
  AttentionView view = view_of(s, p.mask, nullptr);
  const auto both = [&](const void* a, const void* b, const AttentionStrides& strides, int64_t channels) {
    return is_packed(a, strides, channels, s.type) && is_packed(b, strides, channels, s.type);
  };
  view.packed = {.q = both(p.q, p.dq, s.q, s.head_dim),
                 .k = both(p.k, p.dk, s.k, s.head_dim),
                 .v = both(p.v, p.dv, s.v, s.value_dim),
                 .y = both(p.y, p.dy, s.y, s.value_dim)};
  auto* delta = static_cast<float*>(workspace);
  by_float(s.type, [&](auto zero) {
    using T = decltype(zero);
    if (rows > 0) {
      launch(stream, "attention_delta", flat_launch(stream, rows * kWarp),
             AttentionDelta<T>{view, static_cast<const T*>(p.y), static_cast<const T*>(p.dy), delta});
    }
    by_dim(std::max(s.head_dim, s.value_dim),
           [&](auto dim) { launch_grad<T, dim()>(stream, view, p, delta); });
  });
}

void rotate_pairs(tensor::Stream& stream, tensor::DType type, const RotaryArgs& a) {
  const int64_t items = a.batch * a.seq * a.heads * (a.dim - a.rotated / 2);
  if (items == 0) return;
  by_float(type, [&](auto zero) {
    using T = decltype(zero);
    const Launch grid = flat_launch(stream, items);
    if constexpr (!std::is_same_v<T, float>) {
      if (!a.angles_f32) return launch(stream, "rotary_embedding", grid, RotatePairs<T, T>{a});
    }
    launch(stream, "rotary_embedding", grid, RotatePairs<T, float>{a});
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
