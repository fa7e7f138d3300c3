// Norms over rows that a block keeps in registers, and their gradients in one pass: what norm_kernels.h does
// for rows of any width, at one read and one write an element. Statistics are f32; every sum has an order
// that the extents fix. Types as there.
#pragma once

#include <cmath>
#include <cstdint>

#include "backend/cuda/norm/norm_kernels.h"
#include "backend/cuda/reduce/held_rows.h"

namespace trireme::cuda {

/// A row in registers, and how it is normalised.
struct HeldRow {
  const float* x;
  int64_t n;
  float epsilon;
  bool rms;
};

/// Mean (0 for RMS) and inverse deviation: the variance is of differences from the mean.
template <int kSteps, class Lane>
TRIREME_DEVICE RowMoments held_moments(const Lane& lane, HeldReduce<Lane>& reduce, const HeldRow& row) {
  const float count = static_cast<float>(row.n);
  const float* const x = row.x;
  float mean = 0;
  if (!row.rms) {
    float total = 0;
    for_held<kSteps>(lane, row.n, [&](int slot) { total += x[slot]; });
    mean = reduce.one(total, Plus{}) / count;
  }
  float squares = 0;
  for_held<kSteps>(lane, row.n, [&](int slot) { squares += (x[slot] - mean) * (x[slot] - mean); });
  return {mean, 1.0f / sqrtf(reduce.one(squares, Plus{}) / count + row.epsilon)};
}

/// RowNorm. sizeof(T) bytes an element and those of what is written.
template <class T, class S = float, class R = T>
struct HeldNorm {
  static constexpr int kSteps = kHeldOne.steps;
  RowNorm<T, S, R> of;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    HeldReduce<Lane> reduce(lane);
    const int64_t n = of.n;
    for (int64_t row = lane.block(); row < of.rows; row += lane.blocks()) {
      float x[kSteps * kHeldStep] = {};
      load_held<kSteps>(lane, of.x + row * n, n, x);
      const RowMoments m = held_moments<kSteps>(lane, reduce, {x, n, of.epsilon, of.rms});
      scale_up(lane, m, x);
      if (of.y != nullptr) store_held<kSteps>(lane, x, of.y + row * n, n);
      if (of.rounded != nullptr) store_held<kSteps>(lane, x, of.rounded + row * n, n);
      if (lane.thread() == 0 && of.mean != nullptr) of.mean[row] = m.mean;
      if (lane.thread() == 0 && of.inv_std != nullptr) of.inv_std[row] = m.inverse;
    }
  }

 private:
  template <class Lane>
  TRIREME_DEVICE void scale_up(const Lane& lane, const RowMoments& m, float* x) const {
    for_held_beside<kSteps>(lane, of.scale, of.n,
                            [&](int slot, float scale) { x[slot] = (x[slot] - m.mean) * m.inverse * scale; });
    if (of.bias == nullptr) return;
    for_held_beside<kSteps>(lane, of.bias, of.n, [&](int slot, float bias) { x[slot] += bias; });
  }
};

/// How rows are shared out where a block adds up columns over the rows that it takes: pieces that follow from
/// the number of rows alone.
struct HeldPieces {
  int64_t pieces = 0, rows = 0;  // of a piece

  static HeldPieces of(int64_t all) {
    // Six blocks on each of 132 multiprocessors: rows of 768 fill them in one turn, of 2,048 in two.
    constexpr int64_t kMostPieces = 792, kLeastRows = 16;
    const int64_t even = (all + kMostPieces - 1) / kMostPieces;
    const int64_t each = even > kLeastRows ? even : kLeastRows;
    return {(all + each - 1) / each, each};
  }
};

/// RowNormGrad and RowNormColumns in one pass: bytes an element are those of dy, x, add and what is written.
/// `of.moments` is not written. sums [2, pieces, n] or null.
template <class T, class S = float, class D = T, class R = T>
struct HeldNormGrad {
  static constexpr int kMostThreads = kHeldMany.threads, kSteps = kHeldMany.steps;
  static constexpr int kSlots = kSteps * kHeldStep;
  RowNormGrad<T, S, D, R> of;
  HeldPieces pieces;
  float* sums;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    HeldReduce<Lane> reduce(lane);
    for (int64_t piece = lane.block(); piece < pieces.pieces; piece += lane.blocks()) {
      float dscale[kSlots] = {}, dbias[kSlots] = {};
      const int64_t end = (piece + 1) * pieces.rows;
      for (int64_t row = piece * pieces.rows; row < end && row < of.rows; ++row)
        take_row(lane, reduce, row, dscale, dbias);
      if (sums == nullptr) continue;
      float* const to = sums + piece * of.n;
      store_held<kSteps>(lane, dscale, to, of.n);
      store_held<kSteps>(lane, dbias, to + pieces.pieces * of.n, of.n);
    }
  }

 private:
  template <class Lane>
  TRIREME_DEVICE void take_row(const Lane& lane, HeldReduce<Lane>& reduce, int64_t row, float* dscale,
                               float* dbias) const {
    const int64_t n = of.n;
    float x[kSlots] = {}, g[kSlots] = {};
    load_held<kSteps>(lane, of.x + row * n, n, x);
    load_held<kSteps>(lane, of.dy + row * n, n, g);
    const RowMoments m = held_moments<kSteps>(lane, reduce, {x, n, of.epsilon, of.rms});
    for_held<kSteps>(lane, n, [&](int slot) {
      x[slot] = (x[slot] - m.mean) * m.inverse;
      dscale[slot] += g[slot] * x[slot];
      dbias[slot] += g[slot];
    });
    if (of.scale != nullptr)
      for_held_beside<kSteps>(lane, of.scale, n, [&](int slot, float scale) { g[slot] *= scale; });
    float total[2] = {};
    for_held<kSteps>(lane, n, [&](int slot) {
      total[0] += g[slot];
      total[1] += g[slot] * x[slot];
    });
    reduce.all(total, Plus{});
    const float plain = of.rms ? 0 : total[0] / static_cast<float>(n),
                along = total[1] / static_cast<float>(n);
    for_held<kSteps>(lane, n, [&](int slot) { g[slot] = m.inverse * (g[slot] - plain - x[slot] * along); });
    if (of.add != nullptr)
      for_held_beside<kSteps>(lane, of.add + row * n, n, [&](int slot, float add) { g[slot] += add; });
    if (of.dx != nullptr) store_held<kSteps>(lane, g, of.dx + row * n, n);
    if (of.rounded != nullptr) store_held<kSteps>(lane, g, of.rounded + row * n, n);
  }
};

/// out[i] = the sum over pieces of in[piece, i], rounded once: a warp takes every kWarps-th piece of 32
/// columns, then their sums join in the order of the warps.
template <class S>
struct JoinPiecesInto {
  static constexpr int kWarps = 16, kThreads = kWarps * kWarp, kMostThreads = kThreads;
  static constexpr int64_t kSharedBytes = kThreads * static_cast<int64_t>(sizeof(float));
  const float* in;  // [2, pieces, n]
  S* out[2];        // or null
  int64_t pieces, n;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    float* const shared = lane.template shared<float>();
    const int warp = lane.thread() / kWarp, in_warp = lane.thread() % kWarp;
    const int64_t groups = (n + kWarp - 1) / kWarp;
    for (int64_t task = lane.block(); task < 2 * groups; task += lane.blocks()) {
      const int64_t which = task / groups, column = task % groups * kWarp + in_warp;
      if (out[which] == nullptr) continue;
      const float* const from = in + which * pieces * n + column;
      float total = 0;
      for (int64_t p = warp; p < pieces && column < n; p += kWarps) total += from[p * n];
      shared[lane.thread()] = total;
      lane.sync();
      for (int w = 1; w < kWarps && warp == 0; ++w) total += shared[w * kWarp + in_warp];
      if (warp == 0 && column < n) out[which][column] = from_float<S>(total);
      lane.sync();
    }
  }
};

}  // namespace trireme::cuda
