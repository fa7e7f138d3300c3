// Kernels of recurrent layers forward: a step with its products where few sequences run, else behind them;
// loads and stores of states.
#pragma once

#include <cstdint>

#include "backend/cuda/rnn/recurrent_cells.h"

namespace trireme::cuda {

/// A warp a unit: the rows of its gates times the states of four sequences at a time, then the cell. The
/// weights are read once for four sequences, in 16-byte accesses where rows are whole packs.
template <class T, RecurrentPhase kPhase, bool kPacked>
struct RecurrentUnits {
  static constexpr int kMostThreads = 128;
  static constexpr int kTile = 4;
  using Finish = RecurrentFinish<T, kPhase>;
  static constexpr int kRows = Finish::kRows;
  Finish finish;
  const T* vector;  // [directions, batch, hidden]: what r is multiplied with

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    const RecurrentShape& shape = finish.s.shape;
    const int64_t warps = lane.blocks() * (lane.threads() / kWarp);
    const int in_warp = lane.thread() % kWarp;
    for (int64_t unit = lane.block() * (lane.threads() / kWarp) + lane.thread() / kWarp;
         unit < shape.directions * shape.hidden; unit += warps) {
      const int64_t d = unit / shape.hidden, j = unit % shape.hidden;
      const T* r = static_cast<const T*>(finish.s.r) +
                   (d * shape.gates * shape.hidden + Finish::kFirst * shape.hidden + j) * shape.hidden;
      for (int64_t first = 0; first < shape.batch; first += kTile) {
        float sum[kRows][kTile] = {};
        add(r, vector + (d * shape.batch + first) * shape.hidden, shape.batch - first, in_warp, sum);
        float own[kRows] = {};
        for (int g = 0; g < kRows; ++g) {
          for (int t = 0; t < kTile; ++t) {
            float total = sum[g][t];
            for (int mask = kWarp / 2; mask > 0; mask /= 2) total += lane.shuffle_xor(total, mask);
            if (t == in_warp) own[g] = total;
          }
        }
        if (in_warp < kTile && first + in_warp < shape.batch)
          finish((d * shape.batch + first + in_warp) * shape.hidden + j, own);
      }
    }
  }

 private:
  /// This lane's share of the products of `rows` (at most kTile) sequences.
  TRIREME_DEVICE void add(const T* r, const T* v, int64_t rows, int in_warp,
                          float (&sum)[kRows][kTile]) const {
    constexpr int kEach = kPacked ? kPack<T> : 1;
    const int64_t n = finish.s.shape.hidden;
    for (int64_t k = in_warp * kEach; k < n; k += kWarp * kEach) {
      float weight[kRows][kEach];
      for (int g = 0; g < kRows; ++g) load(r + g * n * n + k, weight[g]);
      for (int t = 0; t < kTile; ++t) {
        if (t >= rows) break;
        float state[kEach];
        load(v + t * n + k, state);
        for (int g = 0; g < kRows; ++g) {
          for (int e = 0; e < kEach; ++e) sum[g][t] += weight[g][e] * state[e];
        }
      }
    }
  }
  template <int kEach>
  static TRIREME_DEVICE void load(const T* at, float (&out)[kEach]) {
    if constexpr (kEach == 1) {
      out[0] = to_float(*at);
    } else {
      load_pack(at, kEach, out);
    }
  }
};

/// A thread a unit of a sequence, behind a product.
template <class T, RecurrentPhase kPhase>
struct RecurrentCells {
  static constexpr bool kIndependent = true;
  RecurrentFinish<T, kPhase> finish;
  const T* product;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    constexpr int kRows = RecurrentFinish<T, kPhase>::kRows;
    const RecurrentShape& shape = finish.s.shape;
    const int64_t stride = lane.blocks() * lane.threads(), n = shape.hidden;
    for (int64_t i = lane.block() * lane.threads() + lane.thread(); i < shape.directions * shape.batch * n;
         i += stride) {
      float rows[kRows];
      for (int g = 0; g < kRows; ++g) rows[g] = to_float(product[(i / n * kRows + g) * n + i % n]);
      finish(i, rows);
    }
  }
};

/// A state a thread; forth and back between [directions, batch, hidden] and the operands' order.
template <class T, bool kLoads>
struct RecurrentStateMoves {
  static constexpr bool kIndependent = true;
  RecurrentStates s;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    const RecurrentShape& shape = s.shape;
    const int64_t stride = lane.blocks() * lane.threads(), n = shape.hidden;
    for (int64_t i = lane.block() * lane.threads() + lane.thread(); i < shape.directions * shape.batch * n;
         i += stride) {
      const int64_t d = i / n / shape.batch, b = i / n % shape.batch;
      const int64_t there = (shape.batch_first ? b * shape.directions + d : d * shape.batch + b) * n + i % n;
      if constexpr (kLoads) {
        const float h = s.h0 == nullptr ? 0 : to_float(static_cast<const T*>(s.h0)[there]);
        if (s.h != nullptr) static_cast<T*>(s.h)[i] = from_float<T>(h);
        if (s.wide_h != nullptr) s.wide_h[i] = h;
        if (s.c != nullptr) s.c[i] = s.c0 == nullptr ? 0 : to_float(static_cast<const T*>(s.c0)[there]);
      } else {
        float h = s.wide_h != nullptr ? s.wide_h[i] : s.h != nullptr ? to_float(static_cast<T*>(s.h)[i]) : 0;
        if (s.add != nullptr) h += to_float(static_cast<const T*>(s.add)[i]);
        if (s.h_result != nullptr) static_cast<T*>(s.h_result)[there] = from_float<T>(h);
        if (s.c_result != nullptr)
          static_cast<T*>(s.c_result)[there] = from_float<T>(s.c == nullptr ? 0.0f : s.c[i]);
      }
    }
  }
};

}  // namespace trireme::cuda
