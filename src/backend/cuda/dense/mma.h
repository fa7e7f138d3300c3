// A warp's product of small 16-bit matrices with f32 sums: the tensor cores' m16n8k16, and the same by plain
// loops where no device is.
#pragma once

#include <cstdint>
#include <type_traits>

#include "backend/cuda/device/scalar.h"

namespace trireme::cuda {

/// Two 16-bit elements in one register, the first in the low half.
template <class T>
TRIREME_DEVICE uint32_t pack_two(float low, float high) {
  static_assert(sizeof(T) == 2);
  const T two[2] = {from_float<T>(low), from_float<T>(high)};
  uint32_t bits;
  __builtin_memcpy(&bits, two, sizeof bits);
  return bits;
}

#ifndef __CUDACC__
/// Where each lane of the warp keeps its `mine`, by lane: lanes are fibers of one process, and tell each
/// other twice as many addresses each time.
template <class Lane, class What>
void addresses_of_lanes(const Lane& lane, const What& mine, const What* (&all)[kWarp]) {
  const int own = lane.thread() % kWarp;
  all[own] = &mine;
  for (int mask = 1; mask < kWarp; mask *= 2) {
    const auto address = lane.shuffle_xor(reinterpret_cast<uintptr_t>(all), mask);
    const auto* theirs = reinterpret_cast<const What* const*>(address);
    for (int j = 0; j < mask; ++j) all[own ^ mask ^ j] = theirs[own ^ mask ^ j];
  }
}
#endif

/// Turns an 8 x 8 matrix of 16-bit elements over: with group = lane / 4 and pair = lane % 4 * 2 a lane holds
/// columns pair and pair + 1 of row `group`, before and after. All lanes of the warp take part.
template <class Lane>
TRIREME_DEVICE uint32_t transpose_words(const Lane& lane, uint32_t word) {
#ifdef __CUDACC__
  (void)lane;
  uint32_t turned;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(turned) : "r"(word));
  return turned;
#else
  const int row = lane.thread() % kWarp / 4, pair = lane.thread() % 4 * 2;
  const uint32_t* all[kWarp];
  addresses_of_lanes(lane, word, all);
  const auto element = [&](int from) { return *all[from * 4 + row / 2] >> row % 2 * 16 & 0xffffu; };
  const uint32_t turned = element(pair) | element(pair + 1) << 16;
  lane.shuffle_xor(0, 1);  // words stay until all have read them
  return turned;
#endif
}

/// c [16, 8] += a [16, 16] b [16, 8]. With group = lane / 4 and pair = lane % 4 * 2 a lane holds
///   a: rows group, group + 8, group, group + 8; columns pair and pair + 1 of the first (last two: second) 8
///   b: rows pair and pair + 1 of the first and the second 8; column group
///   c: row group, then group + 8; columns pair and pair + 1
/// All lanes of the warp take part. Source: PTX ISA, fragments of mma.m16n8k16.
template <class T, class Lane>
TRIREME_DEVICE void multiply_add(const Lane& lane, float (&c)[4], const uint32_t (&a)[4],
                                 const uint32_t (&b)[2]) {
#ifdef __CUDACC__
  (void)lane;
  if constexpr (std::is_same_v<T, BFloat16>) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }
#else
  struct Fragments {
    const uint32_t *a, *b;
  };
  const int own = lane.thread() % kWarp;
  const Fragments mine{a, b};
  const Fragments* all[kWarp];
  addresses_of_lanes(lane, mine, all);
  const auto half = [](uint32_t word, int which) {
    T two[2];
    __builtin_memcpy(static_cast<void*>(two), &word, sizeof word);
    return to_float(two[which]);
  };
  for (int i = 0; i < 4; ++i) {
    const int row = own / 4 + i / 2 * 8, column = own % 4 * 2 + i % 2;
    for (int k = 0; k < 16; ++k) {
      const int in_pair = k % 8 / 2;
      const float x = half(all[row % 8 * 4 + in_pair]->a[row / 8 + k / 8 * 2], k % 2);
      c[i] += x * half(all[column * 4 + in_pair]->b[k / 8], k % 2);
    }
  }
  lane.shuffle_xor(0, 1);  // fragments stay until all have read them
#endif
}

}  // namespace trireme::cuda
