// Muon beside its products: momentum and the start of the iteration, and the step. T: the iterate's type.
#pragma once

#include <cstdint>

#include "backend/cuda/optim/trust_kernels.h"

namespace trireme::cuda {

/// Rounds to the iterate's type and back.
template <class T>
TRIREME_DEVICE float rounded_to(float x) {
  return to_float(from_float<T>(x));
}

/// f(element, chunk) of the matrices of a table that lie one after another in the iterate, whose first is
/// number `first`; n elements each.
struct MuonTable {
  UpdateTable table;
  int64_t first, n;
};

/// The momentum, x = the direction, and sums of squares of its chunks. 12 + sizeof(T) bytes an element.
template <class T>
struct StartMuon {
  MuonTable at;
  const TrustNumbers* numbers;
  float take, momentum;
  bool nesterov;
  T* x;
  double* sums;  // [matrices, chunks of one]

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    double* scratch = lane.template shared<double>();
    const TrustNumbers k = *numbers;
    const int64_t per = at.table.first_chunk[1];  // all matrices have as many
    for (int64_t chunk = lane.block(); chunk < at.table.first_chunk[at.table.count]; chunk += lane.blocks()) {
      const int64_t number = chunk / per, begin = chunk % per * UpdateTable::kChunk;
      const UpdateGroup& g = at.table.group[number];
      const int64_t end = begin + UpdateTable::kChunk < g.n ? begin + UpdateTable::kChunk : g.n;
      double sum = 0;
      for (int64_t i = begin + lane.thread(); i < end; i += lane.threads()) {
        const float grad = exact::times(g.grad[i], k.scale), old = g.state[0][i];
        const float moved = exact::plus(old, exact::times(take, exact::plus(grad, -old)));
        const float u =
            nesterov ? exact::plus(grad, exact::times(momentum, exact::plus(moved, -grad))) : moved;
        const float kept = rounded_to<T>(u);
        g.state_out[0][i] = k.is_skipped != 0 ? old : moved;
        x[(at.first + number) * at.n + i] = from_float<T>(u);
        sum += static_cast<double>(kept) * static_cast<double>(kept);
      }
      sum = block_reduce(lane, sum, scratch, PlusWide{});
      if (lane.thread() == 0) sums[at.first * per + chunk] = sum;
    }
  }
};

/// 1 / max(|x|, eps) of each matrix, a warp a matrix.
template <class T>
struct MuonNorms {
  const double* sums;
  int64_t matrices, chunks;
  double epsilon;
  float* inverse;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    const int warps = lane.threads() / kWarp, in_warp = lane.thread() % kWarp;
    for (int64_t m = lane.block() * warps + lane.thread() / kWarp; m < matrices; m += lane.blocks() * warps) {
      double sum = 0;
      for (int64_t c = in_warp; c < chunks; c += kWarp) sum += sums[m * chunks + c];
      for (int mask = kWarp / 2; mask > 0; mask /= 2) sum += lane.shuffle_xor(sum, mask);
      const double norm = sqrt(sum), bounded = epsilon > norm ? epsilon : norm;
      if (in_warp == 0) inverse[m] = exact::divided(1.0f, rounded_to<T>(static_cast<float>(bounded)));
    }
  }
};

/// x = x inverse of its matrix: the Frobenius norm bounds the largest singular value by 1, where the
/// iteration converges.
template <class T>
struct ScaleMuon {
  T* x;
  const float* inverse;
  int64_t matrices, n;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    const int64_t step = lane.blocks() * lane.threads();
    for (int64_t i = lane.block() * lane.threads() + lane.thread(); i < matrices * n; i += step)
      x[i] = from_float<T>(exact::times(to_float(x[i]), inverse[i / n]));
  }
};

/// p = p keep - lr adjust x. 8 + sizeof(T) bytes an element.
template <class T>
struct ApplyMuon {
  MuonTable at;
  const TrustNumbers* numbers;
  double adjust;
  const T* x;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    const TrustNumbers k = *numbers;
    const int64_t per = at.table.first_chunk[1];
    const float by = static_cast<float>(-k.lr * adjust);
    for (int64_t chunk = lane.block(); chunk < at.table.first_chunk[at.table.count]; chunk += lane.blocks()) {
      const int64_t number = chunk / per, begin = chunk % per * UpdateTable::kChunk;
      const UpdateGroup& g = at.table.group[number];
      const int64_t end = begin + UpdateTable::kChunk < g.n ? begin + UpdateTable::kChunk : g.n;
      for (int64_t i = begin + lane.thread(); i < end; i += lane.threads()) {
        const float u = to_float(x[(at.first + number) * at.n + i]);
        float p = g.param[i];
        if (k.is_skipped == 0) p = exact::plus(exact::times(by, u), exact::times(k.keep, p));
        store_param(g, &p, i, 1);
      }
    }
  }
};

}  // namespace trireme::cuda
