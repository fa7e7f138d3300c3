// Tiles of 16-bit elements in shared memory for products of a warp (mma.h): filled while others are
// multiplied, and read four 8 x 8 matrices at a time.
#pragma once

#include <cstdint>

#include "backend/cuda/dense/mma.h"
#include "backend/cuda/dense/words.h"

namespace trireme::cuda {

/// Copies 16 bytes to shared memory while the thread goes on; there behind wait_for_copies() and a barrier.
TRIREME_DEVICE void copy_ahead(void* to, const void* from) {
#ifdef __CUDACC__
  const auto at = static_cast<uint32_t>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at), "l"(from) : "memory");
#else
  *static_cast<Words*>(to) = *static_cast<const Words*>(from);
#endif
}
/// Waits for the thread's own copies.
TRIREME_DEVICE void wait_for_copies() {
#ifdef __CUDACC__
  asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

/// Four 8 x 8 matrices of 16-bit elements in shared memory: lane l gives the address of row l % 8 of matrix l
/// / 8, 16 bytes, and gets of each matrix a row's pair as fragments of mma.h have it: columns pair and pair +
/// 1 of row `group`. With kTurned: rows pair and pair + 1 of column `group`. All lanes of the warp take part.
template <bool kTurned, class Lane>
TRIREME_DEVICE Words load_matrices(const Lane& lane, const void* row) {
  Words out;
#ifdef __CUDACC__
  (void)lane;
  const auto at = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  uint32_t(&w)[4] = out.word;
  if constexpr (kTurned) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3])
                 : "r"(at)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3])
                 : "r"(at)
                 : "memory");
  }
#else
  const auto* own = static_cast<const Words*>(row);
  const Words* const* all[kWarp];
  addresses_of_lanes(lane, own, all);
  const int group = lane.thread() % kWarp / 4, pair = lane.thread() % 4 * 2;
  const auto element = [&](int matrix, int in_row, int column) {
    return (*all[matrix * 8 + in_row])->word[column / 2] >> column % 2 * 16 & 0xffffu;
  };
  for (int m = 0; m < 4; ++m) {
    out.word[m] = kTurned ? element(m, pair, group) | element(m, pair + 1, group) << 16
                          : element(m, group, pair) | element(m, group, pair + 1) << 16;
  }
  lane.shuffle_xor(0, 1);  // addresses stay until all have read them
#endif
  return out;
}

}  // namespace trireme::cuda
