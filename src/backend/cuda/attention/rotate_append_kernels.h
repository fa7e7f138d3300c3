// What decoding does with new tokens before it attends: queries and keys are rotated, keys and values go to
// their pages, in one pass.
#pragma once

#include <cstdint>

#include "backend/cuda/attention/decode_attention.h"
#include "backend/cuda/attention/paged_decode_kernels.h"

namespace trireme::cuda {

/// A thread two channels of a query, key or value head that rotate together, or one that does not rotate.
/// Bytes: q, k and v once read, q in place of `q`, k and v in their pages once written. Does what
/// PreparePaged does too. C: the type of cosine and sine, Q or f32.
template <class Q, class T, class C>
struct RotateAppend {
  DecodeAttentionArgs a;
  PreparePaged<Q> prepare;
  Q* queries;  // [rows, heads, dim]

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    prepare(lane);
    const PagedAttentionArgs& p = a.attention;
    const int64_t half = a.rotated / 2, items = p.dim - half, slots = p.heads + 2 * p.kv_heads;
    const int64_t step = lane.blocks() * lane.threads();
    for (int64_t i = lane.block() * lane.threads() + lane.thread(); i < p.rows * slots * items; i += step) {
      const int64_t item = i % items, slot = i / items % slots, token = i / items / slots;
      if (slot < p.heads) {
        const int64_t at = (token * p.heads + slot) * p.dim;
        move(token, item, true, static_cast<const Q*>(p.q) + at, queries + at);
        continue;
      }
      const bool is_key = slot < p.heads + p.kv_heads;
      const int64_t head = slot - p.heads - (is_key ? 0 : p.kv_heads);
      const int64_t to = place_of(token, head);
      if (to < 0) continue;
      const int64_t at = (token * p.kv_heads + head) * p.dim;
      move(token, item, is_key, static_cast<const Q*>(is_key ? a.keys : a.values) + at,
           static_cast<T*>(const_cast<void*>(is_key ? p.k_pages : p.v_pages)) + to);
    }
  }

 private:
  /// Where the token's key and value of a head go; -1: nowhere.
  TRIREME_DEVICE int64_t place_of(int64_t token, int64_t head) const {
    const PagedAttentionArgs& p = a.attention;
    const int64_t slot = a.slots[token];
    if (slot < 0) return -1;
    if (slot >= p.pages * p.page_tokens) {
      report_fault(p.fault, p.step, slot);
      return -1;
    }
    const int64_t page = slot / p.page_tokens, at = slot % p.page_tokens;
    return ((page * p.kv_heads + head) * p.page_tokens + at) * p.dim;
  }

  /// Channels of `item` from one head to another, rounded to Q as an operator between the two would.
  template <class To>
  TRIREME_DEVICE void move(int64_t token, int64_t item, bool rotates, const Q* from, To* to) const {
    const int64_t half = a.rotated / 2;
    const auto store = [](float v, To* at) { *at = from_float<To>(to_float(from_float<Q>(v))); };
    if (item >= half) return store(to_float(from[item + half]), to + item + half);
    const int64_t first = a.interleaved ? 2 * item : item,
                  second = a.interleaved ? 2 * item + 1 : item + half;
    const float u = to_float(from[first]), v = to_float(from[second]);
    if (!rotates) {
      store(u, to + first);
      return store(v, to + second);
    }
    int64_t row = a.positions[token] < 0 ? 0 : a.positions[token];
    row = row < a.angle_rows ? row : a.angle_rows - 1;
    const float c = to_float(static_cast<const C*>(a.cosine)[row * half + item]);
    const float s = to_float(static_cast<const C*>(a.sine)[row * half + item]);
    store(c * u - s * v, to + first);
    store(s * u + c * v, to + second);
  }
};

}  // namespace trireme::cuda
