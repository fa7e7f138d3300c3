// What a thread of paged attention asks of the batch: whose row this is, what it sees, where a token lies.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "backend/cuda/attention/paged_attention.h"
#include "backend/cuda/device/scalar.h"
#include "tensor/element_math.h"

namespace trireme::cuda {

/// Tokens of a sequence that one block reads when it decodes: kLeastPart, 32 KiB of keys and values of 128
/// channels of 16 bits, or the least double of it that cuts the sequence into kMostParts. So a sequence of
/// some hundred tokens fills the device, parts of a long one stay few beside their keys, and how a row's sum
/// is cut follows from the length of its own sequence.
inline constexpr int64_t kLeastPart = 64, kMostParts = 64;
TRIREME_HD inline int64_t part_tokens(int64_t length) {
  int64_t part = kLeastPart;
  while (part * kMostParts < length) part *= 2;
  return part;
}
/// Parts of a sequence of `length` tokens.
TRIREME_HD inline int64_t parts_of(int64_t length) {
  int64_t parts = (length + kLeastPart - 1) / kLeastPart;  // no division by a number that varies
  while (parts > kMostParts) parts = (parts + 1) / 2;
  return parts;
}

/// An element of pages in 8 bits: a code of i8 or f8e4m3fn, or a byte of the scale behind a row's codes.
struct PageCode {
  uint8_t bits;
};

struct PagedView {
  const int32_t *table, *lengths, *starts;
  int64_t rows, sequences, heads, kv_heads, dim, pages, page_tokens, most_pages, window;
  int64_t row_elements;  ///< of the key or value of a token and head
  bool has_float_codes;  ///< codes are of f8e4m3fn, not of i8
  int64_t group_size;    ///< heads / kv_heads: a division that threads need not do
  float scale, softcap;
  int64_t* fault;
  int64_t step;

  /// Query heads of a key head.
  TRIREME_HD int64_t group() const { return group_size; }
  /// Parts of the longest sequence that the table has room for. A shorter one may have more than another
  /// longer one, but none more than this.
  TRIREME_HD int64_t most_parts() const {
    const int64_t parts = (most_pages * page_tokens + kLeastPart - 1) / kLeastPart;
    return parts < kMostParts ? parts : kMostParts;
  }
  /// Rows that may belong to sequences of few new tokens.
  TRIREME_HD int64_t few_rows() const { return rows < sequences * kFewRows ? rows : sequences * kFewRows; }
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
    const int64_t number = head_number(s, kv, token);
    return number < 0 ? -1 : number * row_elements;
  }
  /// The same as a number of rows.
  TRIREME_DEVICE int64_t head_number(int64_t s, int64_t kv, int64_t token) const {
    // Tokens of a sequence fit 32 bits, which a GPU divides in a tenth of the time.
    const auto at = static_cast<uint32_t>(token), each = static_cast<uint32_t>(page_tokens);
    const int64_t page = table[s * most_pages + at / each];
    if (page < 0 || page >= pages) {
      report_fault(fault, step, page);
      return -1;
    }
    return (page * kv_heads + kv) * page_tokens + at % each;
  }
  /// Number of the state of a row of few, a head and a part: rows in their order, or four places a sequence
  /// where that is less.
  TRIREME_DEVICE int64_t state(int64_t s, int64_t row, int64_t head, int64_t part) const {
    const int64_t place = rows < sequences * kFewRows ? starts[s] + row : s * kFewRows + row;
    return (place * heads + head) * most_parts() + part;
  }
  /// Of the sequences of few new tokens: parts of the longest, and new tokens of that which has most. All
  /// lanes of a warp call it, for 32 sequences at a time.
  struct Extent {
    int parts, rows;
  };
  template <class Lane>
  TRIREME_DEVICE Extent few_extent(const Lane& lane) const {
    int parts = 0, most = 0;
    for (int64_t s = lane.thread() % kWarp; s < sequences; s += kWarp) {
      const auto own_rows = static_cast<int>(fresh(s));
      if (own_rows <= 0 || own_rows > kFewRows) continue;
      const auto own = static_cast<int>(parts_of(length(s)));
      parts = own > parts ? own : parts;
      most = own_rows > most ? own_rows : most;
    }
    for (int mask = kWarp / 2; mask > 0; mask /= 2) {
      const int others = lane.shuffle_xor(parts, mask), more = lane.shuffle_xor(most, mask);
      parts = others > parts ? others : parts;
      most = more > most ? more : most;
    }
    return {parts, most};
  }
  TRIREME_HD int64_t states() const { return few_rows() * heads * most_parts(); }
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

/// The same bits as another type.
template <class To, class From>
TRIREME_DEVICE To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  memcpy(static_cast<void*>(&to), &from, sizeof to);
  return to;
}

/// The value of a code of f8e4m3fn: shifted to the places of f16 it is 2^8 times too small.
TRIREME_DEVICE float e4m3_value(uint32_t code) {
  const auto half = static_cast<uint16_t>((code & 0x80) << 8 | (code & 0x7f) << 7);
  return 256.0f * to_float(bits_as<Half>(half));
}

/// Channels [first, first + kCount) of a row of codes as floats, zeros behind its last.
template <int kCount>
TRIREME_DEVICE void load_codes(const PagedView& view, const PageCode* row, int first, float* out) {
  static_assert(kCount % 4 == 0);
  const auto* codes = reinterpret_cast<const uint8_t*>(row);
  const auto word_at = [&](int64_t at, int64_t end) {
    if (view.dim % 4 == 0 && at < end) return *reinterpret_cast<const uint32_t*>(codes + at);
    uint32_t word = 0;
    for (int j = 0; j < 4 && at + j < end; ++j) word |= static_cast<uint32_t>(codes[at + j]) << 8 * j;
    return word;
  };
  const float scale = bits_as<float>(word_at(view.dim, view.row_elements));
  for (int i = 0; i < kCount; i += 4) {
    const uint32_t word = word_at(first + i, view.dim);
    for (int j = 0; j < 4; ++j) {
      const uint32_t code = word >> 8 * j & 0xff;
      const auto whole = static_cast<float>(static_cast<int8_t>(code));
      out[i + j] = scale * (view.has_float_codes ? e4m3_value(code) : whole);
    }
  }
}

/// Channels [first, first + kCount) of the key or value that begins at `row`, as floats, zeros behind its
/// last.
template <int kCount, class T>
TRIREME_DEVICE void load_row(const PagedView& view, const T* row, int first, float* out) {
  if constexpr (std::is_same_v<T, PageCode>) {
    load_codes<kCount>(view, row, first, out);
  } else {
    load_channels<kCount>(row, first, view.dim, out);
  }
}

}  // namespace trireme::cuda
