// The plain matrix product that the reference kernels share: exact order, every arithmetic type.
#pragma once

#include "base/threads/thread_pool.h"
#include "ops/dense/matmul_shape.h"

namespace trireme::ops {

/// y [m, n] = a [m, k] b [k, n] for every batch; sums run over rising k, so no thread count changes a bit.
template <class T>
void matmul_reference(const T* a, const T* b, T* y, const MatmulShape& s, base::ThreadPool& pool) {
  pool.for_range(s.batches() * s.m, 1, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t batch = row / s.m;
      const T* x = a + s.a_offset[static_cast<size_t>(batch)] + row % s.m * s.k;
      const T* w = b + s.b_offset[static_cast<size_t>(batch)];
      T* out = y + row * s.n;
      for (int64_t j = 0; j < s.n; ++j) out[j] = T(0);
      for (int64_t l = 0; l < s.k; ++l) {
        const T factor = x[l];
        for (int64_t j = 0; j < s.n; ++j) out[j] = static_cast<T>(out[j] + factor * w[l * s.n + j]);
      }
    }
  });
}

}  // namespace trireme::ops
