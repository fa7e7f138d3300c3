// Kernels over flat arrays: elementwise maps, dropout, Adam. One pass, 16-byte accesses, no order between
// elements.
#pragma once

#include <cmath>
#include <cstdint>

#include "backend/cuda/device/scalar.h"

namespace trireme::cuda {

/// y[i] = f(x[i]); T in memory, f on floats. 2 sizeof(T) bytes an element. Any alignment that T has; runs
/// that are not 16-byte aligned go element by element.
template <class T, class F>
struct MapUnary {
  const T* x;
  T* y;
  int64_t n;
  F f;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    const int64_t stride = lane.blocks() * lane.threads() * kPack<T>;
    for (int64_t i = (lane.block() * lane.threads() + lane.thread()) * kPack<T>; i < n; i += stride) {
      float v[kPack<T>];
      load_pack(x + i, n - i, v);
      for (float& item : v) item = f(item);
      store_pack(v, n - i, y + i);
    }
  }
};

/// y[i] = f(a[i], b[i]). 3 sizeof(T) bytes an element.
template <class T, class F>
struct MapBinary {
  const T *a, *b;
  T* y;
  int64_t n;
  F f;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    const int64_t stride = lane.blocks() * lane.threads() * kPack<T>;
    for (int64_t i = (lane.block() * lane.threads() + lane.thread()) * kPack<T>; i < n; i += stride) {
      float u[kPack<T>], v[kPack<T>];
      load_pack(a + i, n - i, u);
      load_pack(b + i, n - i, v);
      for (int j = 0; j < kPack<T>; ++j) u[j] = f(u[j], v[j]);
      store_pack(u, n - i, y + i);
    }
  }
};

/// The numbers of one Adam step, as backend/cpu/optim/update_rules.h has them.
struct AdamNumbers {
  float grad_scale, l2, beta1, take1, beta2, take2, eps, rate, root, decay;
};

/// g = grad * grad_scale + l2 p; m = beta1 m + take1 g; v = beta2 v + (take2 g) g;
/// p = p decay - rate (m / (sqrt(v) root + eps)). f32: 28 bytes an element. Nothing changes where *skip is
/// not 0. One rounding per operation, so that the bits are the CPU's.
struct AdamStep {
  float *param, *m, *v;
  const float* grad;
  const uint8_t* skip;  // or null
  int64_t n;
  AdamNumbers k;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    if (skip != nullptr && *skip != 0) return;
    const int64_t stride = lane.blocks() * lane.threads() * 4;
    for (int64_t i = (lane.block() * lane.threads() + lane.thread()) * 4; i < n; i += stride) {
      float p[4], g[4], first[4], second[4];
      load_pack(param + i, n - i, p);
      load_pack(grad + i, n - i, g);
      load_pack(m + i, n - i, first);
      load_pack(v + i, n - i, second);
      for (int j = 0; j < 4; ++j) {
        const float d = plus(times(g[j], k.grad_scale), times(k.l2, p[j]));
        first[j] = plus(times(k.beta1, first[j]), times(k.take1, d));
        second[j] = plus(times(k.beta2, second[j]), times(times(k.take2, d), d));
        const float below = plus(times(root_of(second[j]), k.root), k.eps);
        p[j] = plus(times(p[j], k.decay), -times(k.rate, divided(first[j], below)));
      }
      store_pack(p, n - i, param + i);
      store_pack(first, n - i, m + i);
      store_pack(second, n - i, v + i);
    }
  }

 private:
  // The compiler may not contract these into multiply-adds, which round once.
#ifdef __CUDA_ARCH__
  static TRIREME_DEVICE float times(float a, float b) { return __fmul_rn(a, b); }
  static TRIREME_DEVICE float plus(float a, float b) { return __fadd_rn(a, b); }
  static TRIREME_DEVICE float divided(float a, float b) { return __fdiv_rn(a, b); }
  static TRIREME_DEVICE float root_of(float a) { return __fsqrt_rn(a); }
#else
  static float times(float a, float b) { return a * b; }
  static float plus(float a, float b) { return a + b; }
  static float divided(float a, float b) { return a / b; }
  static float root_of(float a) { return std::sqrt(a); }
#endif
};

/// Philox4x32-10 as base/rng.h has it.
TRIREME_DEVICE void philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]) {
  uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3], k0 = key[0], k1 = key[1];
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53} * c0, b = uint64_t{0xCD9E8D57} * c2;
    c0 = static_cast<uint32_t>(b >> 32) ^ c1 ^ k0;
    c1 = static_cast<uint32_t>(b);
    c2 = static_cast<uint32_t>(a >> 32) ^ c3 ^ k1;
    c3 = static_cast<uint32_t>(a);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  out[0] = c0;
  out[1] = c1;
  out[2] = c2;
  out[3] = c3;
}

/// y = x / (1 - ratio) where element first + i is kept, else 0: the mask of
/// backend/cpu/elementwise/dropout.h, whose 64 elements share 16 blocks. A thread draws one block and so
/// decides elements 16 apart, 4 of them; the 16 threads of a group cover 64 neighbours. 2 sizeof(T) bytes an
/// element.
template <class T>
struct Dropout {
  const T* x;
  T* y;
  int64_t n;
  uint64_t first, seed, stream;
  uint32_t threshold;
  float scale;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    const uint64_t last = first + static_cast<uint64_t>(n);
    const uint64_t groups = last / 64 - first / 64 + 1;
    const uint32_t key[2] = {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)};
    const int64_t stride = lane.blocks() * lane.threads();
    for (int64_t t = lane.block() * lane.threads() + lane.thread(); t < static_cast<int64_t>(groups) * 16;
         t += stride) {
      const uint64_t block = first / 64 * 16 + static_cast<uint64_t>(t);
      const uint32_t counter[4] = {static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32),
                                   static_cast<uint32_t>(stream), static_cast<uint32_t>(stream >> 32)};
      uint32_t word[4];
      philox(counter, key, word);
      for (int w = 0; w < 4; ++w) {
        const uint64_t element = block / 16 * 64 + static_cast<uint64_t>(w) * 16 + block % 16;
        if (element < first || element >= last) continue;
        const uint64_t i = element - first;
        y[i] = from_float<T>(word[w] >= threshold ? to_float(x[i]) * scale : 0.0f);
      }
    }
  }
};

}  // namespace trireme::cuda
