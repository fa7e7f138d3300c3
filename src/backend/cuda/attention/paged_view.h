// What a thread of paged attention asks of the batch: whose row this is, what it sees, where a token lies.
#pragma once

#include <cmath>
#include <cstdint>

#include "backend/cuda/attention/paged_attention.h"
#include "backend/cuda/device/scalar.h"

namespace trireme::cuda {

/// Tokens of a sequence that one block reads when it decodes; parts have this length always.
inline constexpr int64_t kPagedPart = 256;

struct PagedView {
  const int32_t *table, *lengths, *starts;
  int64_t rows, sequences, heads, kv_heads, dim, pages, page_tokens, most_pages, window;
  float scale, softcap;
  int64_t* fault;
  int64_t step;

  /// Query heads of a key head.
  TRIREME_DEVICE int64_t group() const { return heads / kv_heads; }
  TRIREME_DEVICE int64_t parts() const { return (most_pages * page_tokens + kPagedPart - 1) / kPagedPart; }
  TRIREME_DEVICE int64_t fresh(int64_t s) const { return starts[s + 1] - starts[s]; }
  TRIREME_DEVICE int64_t length(int64_t s) const {
    const int64_t most = most_pages * page_tokens;
    return lengths[s] < most ? lengths[s] : most;
  }
  /// Keys that row i of a sequence's new ones sees.
  TRIREME_DEVICE int64_t seen(int64_t s, int64_t i) const {
    const int64_t n = length(s) - fresh(s) + i + 1;
    return n > 0 ? n : 0;
  }
  /// First key that a query sees of whose keys `seen` are its own and those before it.
  TRIREME_DEVICE int64_t first_of(int64_t seen_keys) const {
    return window > 0 && seen_keys > window ? seen_keys - window : 0;
  }
  TRIREME_DEVICE float capped(float score) const {
    return softcap > 0 ? softcap * tanhf(score / softcap) : score;
  }
  /// The sequence of a row; `sequences` for rows of none.
  TRIREME_DEVICE int64_t sequence_of(int64_t row) const {
    int64_t low = 0, high = sequences;  // starts[low] <= row; row < starts[high] or high is the end
    if (row >= starts[sequences]) return sequences;
    while (high - low > 1) {
      const int64_t middle = (low + high) / 2;
      if (starts[middle] <= row) {
        low = middle;
      } else {
        high = middle;
      }
    }
    return low;
  }
  /// Element where a token's key of head `kv` begins; -1 for a page that is none.
  TRIREME_DEVICE int64_t place(int64_t s, int64_t kv, int64_t token) const {
    const int64_t page = table[s * most_pages + token / page_tokens];
    if (page < 0 || page >= pages) {
      report_fault(fault, step, page);
      return -1;
    }
    return ((page * kv_heads + kv) * page_tokens + token % page_tokens) * dim;
  }
  /// Where the state of a row of few, a head and a part lies.
  TRIREME_DEVICE int64_t state(int64_t s, int64_t row, int64_t head, int64_t part) const {
    return (((s * kFewRows + row) * heads + head) * parts() + part) * (dim + 2);
  }
};

/// Channels [first, first + kCount) of a head of `dim` channels as floats, zeros behind it; kCount is whole
/// packs of T, read at once where heads begin on 16 bytes.
template <int kCount, class T>
TRIREME_DEVICE void load_channels(const T* head, int first, int64_t dim, float* out) {
  if constexpr (kCount % kPack<T> == 0) {
    if (dim % kPack<T> == 0) {
      for (int i = 0; i < kCount; i += kPack<T>) {
        const int64_t left = dim - first - i;
        load_pack(head + first + i, left > 0 ? left : 0, out + i);
      }
      return;
    }
  }
  for (int i = 0; i < kCount; ++i) out[i] = first + i < dim ? to_float(head[first + i]) : 0.0f;
}

}  // namespace trireme::cuda
