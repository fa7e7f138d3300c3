// What a thread of attention asks of the problem: which keys a query sees, and the score of a pair.
#pragma once

#include <cmath>
#include <cstdint>

#include "backend/cuda/attention/attention.h"
#include "backend/cuda/device/scalar.h"

namespace trireme::cuda {

/// Keys [first, last).
struct KeyRange {
  int64_t first, last;
};

/// Rows from `first` on of [rows, channels].
struct TileExtents {
  int64_t first, rows, channels;
  bool is_packed = false;  ///< rows begin on 16 bytes and are whole packs
};

/// Keys [first, last) that one query sees; none where last is 0.
struct SeenKeys {
  int first = 0, last = 0;
  TRIREME_DEVICE bool has(int64_t key) const {
    return static_cast<int>(key) >= first && static_cast<int>(key) < last;
  }
};

/// A score's place.
struct ScorePlace {
  int64_t b, h, query, key;
};

/// Operands whose rows begin on 16 bytes and are whole packs.
struct PackedRows {
  bool q = false, k = false, v = false, y = false;
};

/// Types of masks as device code switches over them.
enum class MaskKind : uint8_t { none, f32, f16, bf16, bytes, words, wide };

struct AttentionView {
  int64_t batch, heads, kv_heads, queries, keys, head_dim, value_dim;
  AttentionStrides q, k, v, y;
  MaskKind mask_kind;
  bool mask_keeps;
  int64_t mask_batch, mask_head, mask_query, mask_keys;
  const void* mask;
  float scale, softcap;
  bool causal;
  int64_t offset, left, right;
  const int64_t* lengths;
  bool ends_at_length;
  PackedRows packed = {};

  TRIREME_DEVICE int64_t keys_in(int64_t b) const {
    return lengths == nullptr || lengths[b] > keys ? keys : lengths[b];
  }
  TRIREME_DEVICE int64_t position(int64_t b, int64_t query) const {
    return query + (ends_at_length ? lengths[b] - queries : offset);
  }
  /// Keys that some query of [first, last] may see.
  TRIREME_DEVICE KeyRange keys_of(int64_t b, int64_t first, int64_t last) const {
    KeyRange r{0, keys_in(b)};
    const int64_t high = position(b, last < queries ? last : queries - 1), low = position(b, first);
    const int64_t ahead = causal ? 0 : right;
    if (ahead >= 0 && high + ahead + 1 < r.last) r.last = high + ahead + 1;
    if (left >= 0 && low - left > 0) r.first = low - left;
    return r;
  }
  TRIREME_DEVICE SeenKeys seen_by(int64_t b, int64_t query) const {
    if (query >= queries) return {};
    const KeyRange r = keys_of(b, query, query);
    return {static_cast<int>(r.first), static_cast<int>(r.last)};
  }
  TRIREME_DEVICE float masked(int64_t b, int64_t h, int64_t query, int64_t key) const {
    if (mask_kind == MaskKind::none) return 0;
    if (key >= mask_keys) return -INFINITY;
    const int64_t at = b * mask_batch + h * mask_head + query * mask_query + key;
    float value = 0;
    switch (mask_kind) {
      case MaskKind::f32: value = static_cast<const float*>(mask)[at]; break;
      case MaskKind::f16: value = to_float(static_cast<const Half*>(mask)[at]); break;
      case MaskKind::bf16: value = to_float(static_cast<const BFloat16*>(mask)[at]); break;
      case MaskKind::bytes: value = static_cast<const uint8_t*>(mask)[at] != 0 ? 1 : 0; break;
      case MaskKind::words: value = static_cast<const int32_t*>(mask)[at] != 0 ? 1 : 0; break;
      default: value = static_cast<const int64_t*>(mask)[at] != 0 ? 1 : 0;
    }
    if (!mask_keeps) return value;
    return value != 0 ? 0 : -INFINITY;
  }
  /// No cap and no mask.
  TRIREME_DEVICE bool is_plain() const { return softcap <= 0 && mask_kind == MaskKind::none; }
  /// A score with cap and mask, which may still hide it: -inf.
  TRIREME_DEVICE float capped(float score, ScorePlace at) const {
    if (softcap > 0) score = softcap * tanhf(score / softcap);
    return score + masked(at.b, at.h, at.query, at.key);
  }
};

/// Of a score, in a row whose log sum exp is known; 0 where the row sees nothing.
TRIREME_DEVICE float probability(float score, float log_sum) {
  return score == -INFINITY || log_sum == -INFINITY ? 0.0f : expf(score - log_sum);
}

}  // namespace trireme::cuda
