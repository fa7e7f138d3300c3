// What decoding does with new tokens before it attends: queries and keys are rotated, keys and values go to
// their pages, in one pass.
#pragma once

#include <cstdint>

#include "backend/cuda/attention/decode_attention.h"
#include "backend/cuda/attention/paged_decode_kernels.h"
#include "backend/cuda/device/overlap.h"

namespace trireme::cuda {

/// A block takes the heads of a token, a thread two packs of 16 bytes of channels that rotate together, or
/// one of channels that do not; where packs do not fit, single channels. Bytes: q, k and v once read, q in
/// place of `q`, k and v in their pages once written. Does what PreparePaged does too. C: the type of cosine
/// and sine, Q or f32.
template <class Q, class T, class C>
struct RotateAppend {
  DecodeAttentionArgs a;
  PreparePaged<Q> prepare;
  Q* queries;  // [rows, heads, dim]

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    let_next_begin(lane);
    wait_for_earlier(lane);
    prepare(lane);
    const PagedAttentionArgs& p = a.attention;
    for (int64_t token = lane.block(); token < p.rows; token += lane.blocks()) take(lane, token);
  }

 private:
  static constexpr int kEach = kPack<Q>;

  template <class Lane>
  TRIREME_DEVICE void take(const Lane& lane, int64_t token) const {
    const PagedAttentionArgs& p = a.attention;
    const int half = static_cast<int>(a.rotated / 2), dim = static_cast<int>(p.dim);
    const int each = !a.interleaved && half % kEach == 0 && dim % kEach == 0 ? kEach : 1;
    // Channels of a token fit 32 bits, which a GPU divides in a tenth of the time.
    const auto items = static_cast<uint32_t>((dim - half) / each);
    const auto heads = static_cast<uint32_t>(p.heads), kv_heads = static_cast<uint32_t>(p.kv_heads);
    const int64_t place = place_of(token), head_elements = p.page_tokens * p.dim;
    const Angles angles = angles_of(token, half);
    for (auto i = static_cast<uint32_t>(lane.thread()); i < (heads + 2 * kv_heads) * items;
         i += static_cast<uint32_t>(lane.threads())) {
      const uint32_t slot = i / items;
      const Item item{static_cast<int>(i % items) * each, each, slot < heads + kv_heads};
      if (slot < heads) {
        const int64_t at = (token * p.heads + slot) * p.dim;
        move(angles, item, static_cast<const Q*>(p.q) + at, queries + at);
      } else if (place >= 0) {
        const int64_t head = slot - heads - (item.rotates ? 0 : kv_heads);
        const void* from = item.rotates ? a.keys : a.values;
        void* to = const_cast<void*>(item.rotates ? p.k_pages : p.v_pages);
        move(angles, item, static_cast<const Q*>(from) + (token * p.kv_heads + head) * p.dim,
             static_cast<T*>(to) + place + head * head_elements);
      }
    }
  }

  /// Where the token's key and value of head 0 go; -1: nowhere.
  TRIREME_DEVICE int64_t place_of(int64_t token) const {
    const PagedAttentionArgs& p = a.attention;
    const int64_t slot = a.slots[token];
    if (slot < 0) return -1;
    if (slot >= p.pages * p.page_tokens) {
      report_fault(p.fault, p.step, slot);
      return -1;
    }
    const auto at = static_cast<uint32_t>(slot), each = static_cast<uint32_t>(p.page_tokens);
    return (int64_t{at / each} * p.kv_heads * p.page_tokens + at % each) * p.dim;
  }

  /// Cosine and sine of a token's channels, or null.
  struct Angles {
    const C *cosine, *sine;
    int half;
  };
  TRIREME_DEVICE Angles angles_of(int64_t token, int half) const {
    if (half == 0) return {nullptr, nullptr, 0};
    int64_t row = a.positions[token] < 0 ? 0 : a.positions[token];
    row = row < a.angle_rows ? row : a.angle_rows - 1;
    return {static_cast<const C*>(a.cosine) + row * half, static_cast<const C*>(a.sine) + row * half, half};
  }

  /// `each` channels from `first` on of those that are first of their pair; behind them those that do not
  /// rotate.
  struct Item {
    int first, each;
    bool rotates;  // values do not
  };
  TRIREME_DEVICE static void load_angles(const C* from, int each, float* out) {
    for (int j = 0; j < kEach; j += kPack<C>) load_pack(from + j, each - j, out + j);
  }
  /// Rounded to Q, as an operator between the two would.
  template <class To>
  TRIREME_DEVICE static void store(float* v, int each, To* to) {
    for (int j = 0; j < kEach; ++j) v[j] = to_float(from_float<Q>(v[j]));
    if (each == kEach) return store_step<kEach>(v, to);
    to[0] = from_float<To>(v[0]);
  }

  /// Channels of an item from one head to another.
  template <class To>
  TRIREME_DEVICE void move(const Angles& angles, Item item, const Q* from, To* to) const {
    float u[kEach], v[kEach];
    const int half = angles.half;
    if (item.first >= half) {
      load_pack(from + item.first + half, item.each, u);
      return store(u, item.each, to + item.first + half);
    }
    const int first = a.interleaved ? 2 * item.first : item.first,
              second = a.interleaved ? first + 1 : first + half;
    load_pack(from + first, item.each, u);
    load_pack(from + second, item.each, v);
    if (item.rotates) {
      float c[kEach], s[kEach];
      load_angles(angles.cosine + item.first, item.each, c);
      load_angles(angles.sine + item.first, item.each, s);
      for (int j = 0; j < kEach; ++j) {
        const float x = u[j], y = v[j];
        u[j] = c[j] * x - s[j] * y;
        v[j] = s[j] * x + c[j] * y;
      }
    }
    store(u, item.each, to + first);
    store(v, item.each, to + second);
  }
};

}  // namespace trireme::cuda
