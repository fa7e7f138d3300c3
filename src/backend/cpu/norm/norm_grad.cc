// The kernel of the gradients of layer norm and RMS norm.
#include "backend/cpu/norm/norm_grad.h"

#include <algorithm>

#include "backend/cpu/simd/simd_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/norm/norm_grad.cc"
#include "hwy/foreach_target.h"
// Must follow foreach_target.h, which sets the SIMD level.
#include "backend/cpu/simd/simd_moments.inc"

#ifndef TRIREME_NORM_GRAD_ONCE
#define TRIREME_NORM_GRAD_ONCE
namespace trireme::cpu {

// Column sums of a piece of rows, and the f32 sums of the rows that were not yet added to them.
struct ColumnSums {
  double *scale, *bias;  // [cols]
  float* block;          // [2, cols]
};

}  // namespace trireme::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace trireme::cpu::HWY_NAMESPACE {
namespace {

// Column sums run over so many rows in f32 before they are added in f64.
constexpr int64_t kBlockRows = 64;

struct Row {
  const float *dy, *x, *scale, *add;
  float* dx;
  size_t n;
  RowMoments moments;
};

// The sums over a row on which its dx depends.
struct RowSums {
  float plain, product;  // of g, of g xhat
};
struct RunningSums {
  VF plain, product;
};

template <bool kWhole>
HWY_INLINE VF get(const float* p, size_t n) {
  if constexpr (kWhole) return hn::LoadU(kF, p);
  return load_n(p, n);
}
template <bool kWhole>
HWY_INLINE void put(VF v, float* p, size_t n) {
  if constexpr (kWhole) return hn::StoreU(v, kF, p);
  store_n(v, p, n);
}

// Adds one vector of columns to the column sums and to the two row sums.
template <bool kWhole, bool kScale>
HWY_INLINE void sum_step(const Row& r, float* block, size_t i, size_t n, RunningSums& sums) {
  const VF dy = get<kWhole>(r.dy + i, n);
  const VF normal = hn::Mul(hn::Sub(get<kWhole>(r.x + i, n), set(r.moments.mean)), set(r.moments.inverse));
  float *to_scale = block + i, *to_bias = block + r.n + i;
  put<kWhole>(hn::MulAdd(dy, normal, get<kWhole>(to_scale, n)), to_scale, n);
  put<kWhole>(hn::Add(dy, get<kWhole>(to_bias, n)), to_bias, n);
  const VF g = kScale ? hn::Mul(dy, get<kWhole>(r.scale + i, n)) : dy;
  sums.plain = hn::Add(sums.plain, g);
  // Lanes past the end hold dy = 0.
  sums.product = hn::MulAdd(g, normal, sums.product);
}

template <bool kScale>
HWY_INLINE RowSums row_sums(const Row& r, float* block) {
  RunningSums sums[4];
  for (RunningSums& v : sums) v.plain = v.product = hn::Zero(kF);
  size_t i = 0;
  for (; i + 4 * kLanes <= r.n; i += 4 * kLanes) {
    for (size_t k = 0; k < 4; ++k) sum_step<true, kScale>(r, block, i + k * kLanes, kLanes, sums[k]);
  }
  for (; i + kLanes <= r.n; i += kLanes) sum_step<true, kScale>(r, block, i, kLanes, sums[0]);
  if (i < r.n) sum_step<false, kScale>(r, block, i, r.n - i, sums[1]);
  const VF plain = hn::Add(hn::Add(sums[0].plain, sums[2].plain), hn::Add(sums[1].plain, sums[3].plain));
  const VF product =
      hn::Add(hn::Add(sums[0].product, sums[2].product), hn::Add(sums[1].product, sums[3].product));
  return {fold_lanes(plain, AddFold()), fold_lanes(product, AddFold())};
}

template <bool kWhole, bool kScale, bool kAdd>
HWY_INLINE void write_step(const Row& r, size_t i, size_t n, VF plain, VF slope) {
  const VF dy = get<kWhole>(r.dy + i, n);
  const VF d = hn::Sub(get<kWhole>(r.x + i, n), set(r.moments.mean));
  const VF g = kScale ? hn::Mul(dy, get<kWhole>(r.scale + i, n)) : dy;
  const VF rest = hn::NegMulAdd(d, slope, hn::Sub(g, plain));
  const VF inverse = set(r.moments.inverse);
  const VF dx = kAdd ? hn::MulAdd(rest, inverse, get<kWhole>(r.add + i, n)) : hn::Mul(rest, inverse);
  put<kWhole>(dx, r.dx + i, n);
}

template <bool kScale, bool kAdd>
HWY_INLINE void grad_row(const Row& r, float* block, bool rms) {
  const RowSums sums = row_sums<kScale>(r, block);
  const float n = static_cast<float>(r.n);
  const VF plain = set(rms ? 0.0f : sums.plain / n), slope = set(sums.product / n * r.moments.inverse);
  size_t i = 0;
  for (; i + kLanes <= r.n; i += kLanes) write_step<true, kScale, kAdd>(r, i, kLanes, plain, slope);
  if (i < r.n) write_step<false, kScale, kAdd>(r, i, r.n - i, plain, slope);
}

void flush(const ColumnSums& to, size_t n) {
  for (size_t c = 0; c < n; ++c) to.scale[c] += static_cast<double>(to.block[c]);
  for (size_t c = 0; c < n; ++c) to.bias[c] += static_cast<double>(to.block[n + c]);
  std::fill(to.block, to.block + 2 * n, 0.0f);
}

template <bool kScale, bool kAdd>
void grad_rows_as(const NormGrad& g, int64_t begin, int64_t end, const ColumnSums& to) {
  const size_t n = static_cast<size_t>(g.cols);
  for (int64_t row = begin; row < end; ++row) {
    const int64_t at = row * g.cols;
    const Row r{g.dy + at,
                g.x + at,
                g.scale,
                kAdd ? g.add + at : nullptr,
                g.dx + at,
                n,
                row_moments(g.x + at, n, g.eps, g.rms)};
    grad_row<kScale, kAdd>(r, to.block, g.rms);
    if ((row - begin) % kBlockRows == kBlockRows - 1) flush(to, n);
  }
  flush(to, n);
}

void grad_rows(const NormGrad& g, int64_t begin, int64_t end, const ColumnSums& to) {
  const size_t n = static_cast<size_t>(g.cols);
  std::fill(to.scale, to.scale + n, 0.0);
  std::fill(to.bias, to.bias + n, 0.0);
  std::fill(to.block, to.block + 2 * n, 0.0f);
  if (g.scale != nullptr) {
    return g.add != nullptr ? grad_rows_as<true, true>(g, begin, end, to)
                            : grad_rows_as<true, false>(g, begin, end, to);
  }
  return g.add != nullptr ? grad_rows_as<false, true>(g, begin, end, to)
                          : grad_rows_as<false, false>(g, begin, end, to);
}

}  // namespace
}  // namespace trireme::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace trireme::cpu {

HWY_EXPORT(grad_rows);

namespace {

// Number of pieces of rows, from the extents only: about 32 Ki elements each, at most 64 pieces.
int64_t pieces_of(int64_t rows, int64_t cols) {
  return std::clamp<int64_t>(std::min(rows * cols / 32768, rows / 4), 1, 64);
}

constexpr int64_t kFinishGrain = 256;  // columns

}  // namespace

int64_t norm_grad_workspace(int64_t rows, int64_t cols) { return pieces_of(rows, cols) * cols * 2 * 12; }

void norm_grad(const NormGrad& g, base::ThreadPool& pool) {
  if (g.cols <= 0) return;
  const int64_t pieces = pieces_of(g.rows, g.cols);
  double* sums = static_cast<double*>(g.workspace);                      // [pieces, 2, cols]
  float* blocks = reinterpret_cast<float*>(sums + pieces * 2 * g.cols);  // [pieces, 2, cols]
  const auto rows = HWY_DYNAMIC_DISPATCH(grad_rows);
  pool.run(pieces, [&](int64_t i) {
    double* at = sums + i * 2 * g.cols;
    rows(g, g.rows * i / pieces, g.rows * (i + 1) / pieces, {at, at + g.cols, blocks + i * 2 * g.cols});
  });
  pool.for_range(g.cols, kFinishGrain, [&](int64_t begin, int64_t end) {
    for (int64_t c = begin; c < end; ++c) {
      double scale = 0, bias = 0;
      for (int64_t i = 0; i < pieces; ++i) {
        scale += sums[i * 2 * g.cols + c];
        bias += sums[(i * 2 + 1) * g.cols + c];
      }
      if (g.dscale != nullptr) g.dscale[c] = static_cast<float>(scale);
      if (g.dbias != nullptr) g.dbias[c] = static_cast<float>(bias);
    }
  });
}

}  // namespace trireme::cpu
#endif
