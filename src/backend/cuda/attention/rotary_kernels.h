// Rotary embedding, and keys or values behind those of a cache.
#pragma once

#include <cstdint>

#include "backend/cuda/attention/attention.h"
#include "backend/cuda/device/scalar.h"

namespace trireme::cuda {

/// See RotaryArgs. A thread a pair or a channel that does not rotate. 2 sizeof(T) bytes a channel. C: the
/// type of cosine and sine, T or f32.
template <class T, class C>
struct RotatePairs {
  RotaryArgs a;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    const T* x = static_cast<const T*>(a.x);
    const C *cosine = static_cast<const C*>(a.cosine), *sine = static_cast<const C*>(a.sine);
    T* y = static_cast<T*>(a.y);
    const int64_t half = a.rotated / 2, items = half + (a.dim - a.rotated);
    const int64_t all = a.batch * a.seq * a.heads * items, stride = lane.blocks() * lane.threads();
    for (int64_t i = lane.block() * lane.threads() + lane.thread(); i < all; i += stride) {
      const int64_t item = i % items, head = i / items % a.heads, token = i / items / a.heads;
      const int64_t at = token / a.seq * a.at.batch + token % a.seq * a.at.seq + head * a.at.head;
      if (item >= half) {
        y[at + a.rotated + item - half] = x[at + a.rotated + item - half];
        continue;
      }
      int64_t row = token;
      if (a.positions != nullptr) {
        row = a.positions[token] < 0 ? 0 : a.positions[token];
        row = row < a.rows ? row : a.rows - 1;
      }
      const int64_t first = at + (a.interleaved ? 2 * item : item),
                    second = first + (a.interleaved ? 1 : half);
      const float c = to_float(cosine[row * half + item]), s = to_float(sine[row * half + item]);
      const float u = to_float(x[first]), v = to_float(x[second]);
      y[first] = from_float<T>(c * u - s * v);
      y[second] = from_float<T>(s * u + c * v);
    }
  }
};

/// See PresentArgs. A thread a channel.
template <class T>
struct AppendPresent {
  PresentArgs a;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    const T *past = static_cast<const T*>(a.past), *fresh = static_cast<const T*>(a.fresh);
    T* present = static_cast<T*>(a.present);
    const int64_t tokens = a.past_tokens + a.fresh_tokens, stride = lane.blocks() * lane.threads();
    const int64_t all = a.batch * a.heads * tokens * a.dim;
    for (int64_t i = lane.block() * lane.threads() + lane.thread(); i < all; i += stride) {
      const int64_t c = i % a.dim, token = i / a.dim % tokens, head = i / a.dim / tokens % a.heads;
      const int64_t b = i / a.dim / tokens / a.heads;
      present[i] = token < a.past_tokens
                       ? past[((b * a.heads + head) * a.past_tokens + token) * a.dim + c]
                       : fresh[b * a.at.batch + (token - a.past_tokens) * a.at.seq + head * a.at.head + c];
    }
  }
};

}  // namespace trireme::cuda
