// Kernel that reduces pieces of many ranks element by element, in the tree over the rank that comm defines.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "backend/cuda/device/scalar.h"

namespace trireme::cuda {

/// T(0, n) of load(0) … load(n - 1): the left part of T(lo, n) is the largest power of two below n. n up to
/// 2^16.
template <class A, class Load, class Combine>
TRIREME_DEVICE A tree_of(int n, const Load& load, Combine combine) {
  A kept[17] = {};  // kept[k]: the newest complete run of 2^k, while bit k of the count is set
  for (int i = 0; i < n; ++i) {
    A value = load(i);
    int level = 0;
    for (int runs = i; (runs & 1) != 0; runs >>= 1) value = combine(kept[level++], value);
    kept[level] = value;
  }
  int level = 0;
  while ((n >> level & 1) == 0) ++level;
  A total = kept[level];
  for (++level; n >> level != 0; ++level) {
    if ((n >> level & 1) != 0) total = combine(kept[level], total);
  }
  return total;
}

struct TreeSum {
  template <class A>
  TRIREME_DEVICE A operator()(A a, A b) const {
    return a + b;
  }
};
/// The larger; NaN if either is.
struct TreeMax {
  template <class A>
  TRIREME_DEVICE A operator()(A a, A b) const {
    return a > b || a != a ? a : b;
  }
};

/// The bits of a 16-bit element as an integer. If ptxas 13.0 knows that a register holds an f16, it stores
/// the number converted to an integer where the low byte is asked for (seen on an H200), so it is not to
/// know.
TRIREME_DEVICE uint32_t opaque(uint32_t bits) {
#ifdef __CUDACC__
  asm volatile("" : "+r"(bits));
#endif
  return bits;
}

/// Element i of an array that begins at any byte, or, if `kAligned`, where its elements may lie.
template <class T, bool kAligned>
TRIREME_DEVICE T load_at(const std::byte* array, int64_t i) {
  if constexpr (kAligned) {
    return reinterpret_cast<const T*>(array)[i];
  } else {
    T value;
    std::memcpy(static_cast<void*>(&value), array + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
    return value;
  }
}
template <class T, bool kAligned>
TRIREME_DEVICE void store_at(std::byte* array, int64_t i, T value) {
  std::byte* at = array + i * static_cast<int64_t>(sizeof(T));
  if constexpr (kAligned) {
    reinterpret_cast<T*>(array)[i] = value;
  } else if constexpr (sizeof(T) == 2) {
    uint16_t bits;
    std::memcpy(&bits, static_cast<const void*>(&value), sizeof bits);
    const uint32_t word = opaque(bits);
    at[0] = static_cast<std::byte>(word & 0xff);
    at[1] = static_cast<std::byte>(word >> 8);
  } else {
    std::memcpy(at, static_cast<const void*>(&value), sizeof(T));
  }
}

/// out[i] = tree over ranks of piece r's element i; this rank's piece lies apart. 16-bit types in f32,
/// rounded once. (ranks + 1) sizeof(T) bytes an element. A caller's buffer may begin at any byte: then
/// without kAligned, byte by byte.
template <class T, class Combine, bool kAligned = true>
struct TreeReduce {
  using A = std::conditional_t<sizeof(T) == 2, float, T>;
  const std::byte* pieces;  // [ranks, stride] of T
  const std::byte* own;     // [n] of T
  std::byte* out;           // [n] of T; may be own
  int64_t stride, n;
  int rank, ranks;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    const int64_t step = lane.blocks() * lane.threads();
    for (int64_t i = lane.block() * lane.threads() + lane.thread(); i < n; i += step) {
      const auto load = [&](int r) {
        return static_cast<A>(r == rank ? load_at<T, kAligned>(own, i)
                                        : load_at<T, kAligned>(pieces, r * stride + i));
      };
      store_at<T, kAligned>(out, i, static_cast<T>(tree_of<A>(ranks, load, Combine{})));
    }
  }
};

}  // namespace trireme::cuda
