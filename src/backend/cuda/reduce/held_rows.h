// Rows that a block keeps in registers: memory is read once and all of a thread's reads are under way before
// the first is used.
#pragma once

#include <algorithm>
#include <cstdint>

#include "backend/cuda/device/step.h"

namespace trireme::cuda {

/// Elements that a thread takes at a time, whatever their type: 16 bytes of 16-bit ones, twice 16 of f32.
/// Sums over values that were rounded have the order of those that were not.
inline constexpr int kHeldStep = 8;

/// Steps of a thread, and most threads of a block: of kernels that hold one operand, and several.
struct HeldForm {
  int steps, threads;

  /// Whether rows of n are held: wider ones are read again.
  constexpr bool holds(int64_t n) const { return n <= int64_t{threads} * steps * kHeldStep; }
  /// Threads of a block a row of n. Which elements are a thread's follows from n alone.
  int threads_of(int64_t n) const {
    const int64_t wanted = (n + steps * kHeldStep - 1) / (steps * kHeldStep);
    return static_cast<int>(std::clamp<int64_t>((wanted + kWarp - 1) / kWarp * kWarp, kWarp, threads));
  }
};
inline constexpr HeldForm kHeldOne{4, 512}, kHeldTwo{2, 512}, kHeldMany{2, 256};

/// Where the elements of a thread are: in steps of kHeldStep neighbours in rows of whole steps; else, as such
/// rows are not aligned, single elements side by side.
template <class Lane>
struct HeldPlace {
  int thread, threads, n;

  TRIREME_DEVICE HeldPlace(const Lane& lane, int64_t width)
      : thread(lane.thread()), threads(lane.threads()), n(static_cast<int>(width)) {}
  TRIREME_DEVICE bool is_whole() const { return n % kHeldStep == 0; }
  TRIREME_DEVICE int step(int s) const { return (s * threads + thread) * kHeldStep; }
  TRIREME_DEVICE int single(int slot) const { return slot * threads + thread; }
};

/// kHeldStep elements as floats; `at` is 16-byte aligned.
template <class T>
TRIREME_DEVICE void load_held_step(const T* at, float* out) {
  TRIREME_UNROLL
  for (int i = 0; i < kHeldStep; i += kPack<T>) load_step<kPack<T>>(at + i, out + i);
}
template <class T>
TRIREME_DEVICE void store_held_step(const float* in, T* at) {
  TRIREME_UNROLL
  for (int i = 0; i < kHeldStep; i += kPack<T>) store_step<kPack<T>>(in + i, at + i);
}

/// f(slot) of this thread's elements of a row of n; slots count from 0 to kSteps kHeldStep.
template <int kSteps, class Lane, class F>
TRIREME_DEVICE void for_held(const Lane& lane, int64_t n, F f) {
  const HeldPlace<Lane> place(lane, n);
  if (place.is_whole()) {
    TRIREME_UNROLL
    for (int s = 0; s < kSteps; ++s) {
      if (place.step(s) >= place.n) continue;
      TRIREME_UNROLL
      for (int j = 0; j < kHeldStep; ++j) f(s * kHeldStep + j);
    }
  } else {
    TRIREME_UNROLL
    for (int s = 0; s < kSteps * kHeldStep; ++s) {
      if (place.single(s) < place.n) f(s);
    }
  }
}

/// f(slot, value) with the elements of a row of n, or of a vector beside the rows: read a step at a time.
template <int kSteps, class T, class Lane, class F>
TRIREME_DEVICE void for_held_beside(const Lane& lane, const T* row, int64_t n, F f) {
  const HeldPlace<Lane> place(lane, n);
  if (place.is_whole()) {
    TRIREME_UNROLL
    for (int s = 0; s < kSteps; ++s) {
      if (place.step(s) >= place.n) continue;
      float v[kHeldStep];
      load_held_step(row + place.step(s), v);
      TRIREME_UNROLL
      for (int j = 0; j < kHeldStep; ++j) f(s * kHeldStep + j, v[j]);
    }
  } else {
    TRIREME_UNROLL
    for (int s = 0; s < kSteps * kHeldStep; ++s) {
      if (place.single(s) < place.n) f(s, to_float(row[place.single(s)]));
    }
  }
}

/// This thread's elements of a row; slots outside keep what they were.
template <int kSteps, class T, class Lane>
TRIREME_DEVICE void load_held(const Lane& lane, const T* row, int64_t n, float* out) {
  for_held_beside<kSteps>(lane, row, n, [&](int slot, float v) { out[slot] = v; });
}
template <int kSteps, class T, class Lane>
TRIREME_DEVICE void store_held(const Lane& lane, const float* in, T* row, int64_t n) {
  const HeldPlace<Lane> place(lane, n);
  if (place.is_whole()) {
    TRIREME_UNROLL
    for (int s = 0; s < kSteps; ++s) {
      if (place.step(s) < place.n) store_held_step(in + s * kHeldStep, row + place.step(s));
    }
  } else {
    TRIREME_UNROLL
    for (int s = 0; s < kSteps * kHeldStep; ++s) {
      if (place.single(s) < place.n) row[place.single(s)] = from_float<T>(in[s]);
    }
  }
}

/// Values that HeldReduce takes at a time, and the shared memory it needs.
inline constexpr int kHeldValues = 2;
inline constexpr int64_t kHeldSharedBytes = 2 * kHeldValues * kWarp * static_cast<int64_t>(sizeof(float));

/// Combines values over a block as block_reduce does, kCount at a time, with one barrier: partial results of
/// one turn are written beside those of the turn before, which slower warps may still read.
template <class Lane>
class HeldReduce {
 public:
  TRIREME_DEVICE explicit HeldReduce(const Lane& lane) : lane_(lane) {}

  template <int kCount, class Combine>
  TRIREME_DEVICE void all(float (&value)[kCount], Combine combine) {
    static_assert(kCount <= kHeldValues);
    TRIREME_UNROLL
    for (int c = 0; c < kCount; ++c) {
      for (int mask = kWarp / 2; mask > 0; mask /= 2)
        value[c] = combine(value[c], lane_.shuffle_xor(value[c], mask));
    }
    const int warps = lane_.threads() / kWarp;
    if (warps == 1) return;
    float* const scratch = lane_.template shared<float>() + turn_ * kHeldValues * kWarp;
    turn_ = 1 - turn_;
    if (lane_.thread() % kWarp == 0) {
      TRIREME_UNROLL
      for (int c = 0; c < kCount; ++c) scratch[c * kWarp + lane_.thread() / kWarp] = value[c];
    }
    lane_.sync();
    TRIREME_UNROLL
    for (int c = 0; c < kCount; ++c) {
      float total = scratch[c * kWarp];
      for (int w = 1; w < warps; ++w) total = combine(total, scratch[c * kWarp + w]);
      value[c] = total;
    }
  }
  template <class Combine>
  TRIREME_DEVICE float one(float value, Combine combine) {
    float values[1] = {value};
    all(values, combine);
    return values[0];
  }

 private:
  const Lane& lane_;
  int turn_ = 0;
};

}  // namespace trireme::cuda
