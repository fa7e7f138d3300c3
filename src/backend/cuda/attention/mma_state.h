// The online softmax of attention on tensor cores: what a lane keeps of its two query vectors.
#pragma once

#include <cmath>
#include <cstdint>

#include "backend/cuda/device/scalar.h"

namespace trireme::cuda {

/// Two rows of the warp's 16: that of the lane's group (lane / 4) and the one 8 below; fragments as
/// multiply_add (mma.h) has its sums.
template <int kDim, int kKeys>
struct MmaState {
  float y[kDim / 8][4] = {};
  float top[2] = {-INFINITY, -INFINITY}, sum[2] = {};
  int64_t seen[2];  ///< keys of the sequence that the row sees

  /// Products with keys from `token` on -> exponents of scale times them; corrects what was summed before for
  /// the new largest score.
  template <class Lane>
  TRIREME_DEVICE void soften(const Lane& lane, int64_t token, float scale, float (&score)[kKeys / 8][4]) {
    const int pair = lane.thread() % 4 * 2;
    for (int r = 0; r < 2; ++r) {
      const int64_t left = seen[r] - token;
      float most = top[r];
      for (int n = 0; n < kKeys / 8; ++n) {
        for (int i = 0; i < 2; ++i) {
          float& v = score[n][2 * r + i];
          v = n * 8 + pair + i < left ? v * scale : -INFINITY;
          most = v > most ? v : most;
        }
      }
      for (int mask = 1; mask < 4; mask *= 2) {
        const float other = lane.shuffle_xor(most, mask);
        most = other > most ? other : most;
      }
      const float base = most == -INFINITY ? 0.0f : most;  // a row without keys: exponents of -inf are 0
      const float before = expf(top[r] - base);
      float added = 0;
      for (int n = 0; n < kKeys / 8; ++n) {
        for (int i = 0; i < 2; ++i) added += score[n][2 * r + i] = expf(score[n][2 * r + i] - base);
      }
      for (int mask = 1; mask < 4; mask *= 2) added += lane.shuffle_xor(added, mask);
      sum[r] = sum[r] * before + added;
      top[r] = most;
      for (int d = 0; d < kDim / 8; ++d) {
        for (int i = 0; i < 2; ++i) y[d][2 * r + i] *= before;
      }
    }
  }
};

}  // namespace trireme::cuda
