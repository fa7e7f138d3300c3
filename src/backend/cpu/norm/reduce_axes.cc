// Reduction kernels: the 64-chain row reduction for contiguous axes, vectors of columns for other axes.
#include "backend/cpu/norm/reduce_axes.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "backend/cpu/simd/simd_targets.h"
#include "base/error.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/norm/reduce_axes.cc"
#include "hwy/foreach_target.h"
#ifndef TRIREME_REDUCE_SHARED
#define TRIREME_REDUCE_SHARED
namespace trireme::cpu {
namespace {

constexpr int64_t kGroup = 64;      // columns held in registers
constexpr int64_t kColumns = 1024;  // columns of one task: one page per row

// Up to kRun axis elements of up to kColumns columns, which are joined into totals[columns].
struct ColumnRun {
  const float* x;
  int64_t n, step, columns;
  const float* max;  // for exponentials
  double* totals;
};

}  // namespace
}  // namespace trireme::cpu
#endif
// Must follow foreach_target.h, which sets the SIMD level.
#include "backend/cpu/simd/simd_math.inc"
#include "backend/cpu/simd/simd_reduce.inc"

HWY_BEFORE_NAMESPACE();
namespace trireme::cpu::HWY_NAMESPACE {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

// How an operation maps an element, how it joins two results, and its initial value.
struct MapSame {
  VF operator()(VF v) const { return v; }
};
struct MapAbs {
  VF operator()(VF v) const { return hn::Abs(v); }
};
struct MapSquare {
  VF operator()(VF v) const { return hn::Mul(v, v); }
};

struct JoinAdd {
  using Fold = AddFold;
  static constexpr float kStart = 0.0f;
  static double join(double a, double b) { return a + b; }
};
struct JoinMul {
  using Fold = MulFold;
  static constexpr float kStart = 1.0f;
  static double join(double a, double b) { return a * b; }
};
struct JoinMax {
  using Fold = MaxFold;
  static constexpr float kStart = -kInf;
  static double join(double a, double b) { return a != a || a > b ? a : b; }
};
struct JoinMin {
  using Fold = MinFold;
  static constexpr float kStart = kInf;
  static double join(double a, double b) { return a != a || a < b ? a : b; }
};

// Reduces one contiguous piece; the caller joins pieces in double.
template <class Map, class Join>
double piece_of(const float* x, size_t n) {
  return static_cast<double>(reduce_run(
      x, n, Join::kStart, [](VF v, size_t) HWY_ATTR { return Map()(v); }, typename Join::Fold()));
}

double exp_piece(const float* x, size_t n, float max) {
  const VF m = set(max);
  return static_cast<double>(reduce_run(
      x, n, 0.0f, [=](VF v, size_t) HWY_ATTR { return exp_nonpositive(hn::Sub(v, m)); }, AddFold()));
}

// Adds axis elements [0, n), `step` floats apart, of one vector of columns to `acc`, a padded vector in
// memory.
template <class Map, class Join>
HWY_INLINE void column_run(const float* x, int64_t n, int64_t step, size_t lanes, float* acc) {
  VF sum = hn::Load(kF, acc);
  for (int64_t a = 0; a < n; ++a) {
    const float* p = x + a * step;
    sum = typename Join::Fold()(sum, Map()(lanes == kLanes ? hn::LoadU(kF, p) : load_n(p, lanes)));
  }
  hn::Store(sum, kF, acc);
}

HWY_INLINE VF exp_column_run(const float* x, int64_t n, int64_t step, size_t lanes, const float* max) {
  const VF m = load_n(max, lanes);
  VF acc = hn::Zero(kF);
  for (int64_t a = 0; a < n; ++a) {
    const float* p = x + a * step;
    acc = hn::Add(acc, exp_nonpositive(hn::Sub(lanes == kLanes ? hn::LoadU(kF, p) : load_n(p, lanes), m)));
  }
  return acc;
}

template <class Join>
void join_lanes(VF acc, int64_t lanes, double* totals) {
  HWY_ALIGN float values[kLanes];
  hn::Store(acc, kF, values);
  for (int64_t i = 0; i < lanes; ++i) totals[i] = Join::join(totals[i], static_cast<double>(values[i]));
}

// 64 columns at once: each axis element is four whole cache lines.
template <class Map, class Join>
HWY_INLINE void group_run(const float* x, int64_t n, int64_t step, float* acc) {
  constexpr size_t kVectors = static_cast<size_t>(kGroup) / kLanes;
  VF sum[kVectors];
  for (size_t v = 0; v < kVectors; ++v) sum[v] = hn::Load(kF, acc + v * kLanes);
  for (int64_t a = 0; a < n; ++a) {
    const float* p = x + a * step;
    for (size_t v = 0; v < kVectors; ++v) {
      sum[v] = typename Join::Fold()(sum[v], Map()(hn::LoadU(kF, p + v * kLanes)));
    }
  }
  for (size_t v = 0; v < kVectors; ++v) hn::Store(sum[v], kF, acc + v * kLanes);
}

// Processes eight axis elements of all columns at a time, so that memory is read in long runs and sums stay
// in L1. Each column is still added in the order of the axis.
template <class Map, class Join>
void columns_of(const ColumnRun& r) {
  constexpr int64_t kStep = static_cast<int64_t>(kLanes), kSub = 8;
  HWY_ALIGN float acc[kColumns];
  std::fill_n(acc, kColumns, Join::kStart);
  for (int64_t a = 0; a < r.n; a += kSub) {
    const float* x = r.x + a * r.step;
    const int64_t n = std::min(kSub, r.n - a);
    int64_t c = 0;
    for (; c + kGroup <= r.columns; c += kGroup) group_run<Map, Join>(x + c, n, r.step, acc + c);
    for (; c < r.columns; c += kStep) {
      column_run<Map, Join>(x + c, n, r.step, static_cast<size_t>(std::min(kStep, r.columns - c)), acc + c);
    }
  }
  for (int64_t c = 0; c < r.columns; ++c) r.totals[c] = Join::join(r.totals[c], static_cast<double>(acc[c]));
}

void exp_columns(const ColumnRun& r) {
  constexpr int64_t kStep = static_cast<int64_t>(kLanes);
  for (int64_t c = 0; c < r.columns; c += kStep) {
    const int64_t lanes = std::min(kStep, r.columns - c);
    const VF acc = exp_column_run(r.x + c, r.n, r.step, static_cast<size_t>(lanes), r.max + c);
    join_lanes<JoinAdd>(acc, lanes, r.totals + c);
  }
}

double row_piece(ReduceOp op, const float* x, size_t n) {
  switch (op) {
    case ReduceOp::max:
    case ReduceOp::log_sum_exp: return piece_of<MapSame, JoinMax>(x, n);
    case ReduceOp::min: return piece_of<MapSame, JoinMin>(x, n);
    case ReduceOp::prod: return piece_of<MapSame, JoinMul>(x, n);
    case ReduceOp::l1: return piece_of<MapAbs, JoinAdd>(x, n);
    case ReduceOp::l2:
    case ReduceOp::sum_square: return piece_of<MapSquare, JoinAdd>(x, n);
    default: return piece_of<MapSame, JoinAdd>(x, n);
  }
}

void column_piece(ReduceOp op, const ColumnRun& r) {
  switch (op) {
    case ReduceOp::max:
    case ReduceOp::log_sum_exp: return columns_of<MapSame, JoinMax>(r);
    case ReduceOp::min: return columns_of<MapSame, JoinMin>(r);
    case ReduceOp::prod: return columns_of<MapSame, JoinMul>(r);
    case ReduceOp::l1: return columns_of<MapAbs, JoinAdd>(r);
    case ReduceOp::l2:
    case ReduceOp::sum_square: return columns_of<MapSquare, JoinAdd>(r);
    default: return columns_of<MapSame, JoinAdd>(r);
  }
}

// Index of the first (or last) element that equals the extreme, or that is NaN.
int64_t arg_row(const float* x, int64_t axis, bool min, bool last) {
  const size_t n = static_cast<size_t>(axis);
  const float best =
      min ? reduce_run(x, n, kInf, Same(), MinFold()) : reduce_run(x, n, -kInf, Same(), MaxFold());
  const auto hit = [=](float v) { return best == best ? v == best : v != v; };
  if (last) {
    int64_t i = axis - 1;
    while (i > 0 && !hit(x[i])) --i;
    return i;
  }
  const VF b = set(best);
  int64_t i = 0;
  for (; i + static_cast<int64_t>(kLanes) <= axis; i += static_cast<int64_t>(kLanes)) {
    const VF v = hn::LoadU(kF, x + i);
    if (!hn::AllFalse(kF, hn::Or(hn::Eq(v, b), not_equal(v, v)))) break;
  }
  while (i + 1 < axis && !hit(x[i])) ++i;
  return i;
}

// kMany whole vectors of columns side by side, for longer runs of memory; each lane is computed as below.
template <int kMany>
HWY_INLINE void arg_many(const float* x, const ArgReduceArgs& g, int64_t* y) {
  VF best[kMany];
  VI index[kMany];
  for (int v = 0; v < kMany; ++v) {
    best[v] = hn::LoadU(kF, x + static_cast<size_t>(v) * kLanes);
    index[v] = hn::Zero(kI);
  }
  for (int64_t a = 1; a < g.axis; ++a) {
    const float* p = x + a * g.inner;
    const VI at = hn::Set(kI, static_cast<int32_t>(a));
    for (int v = 0; v < kMany; ++v) {
      const VF c = hn::LoadU(kF, p + static_cast<size_t>(v) * kLanes);
      const MF better = g.min ? hn::Lt(c, best[v]) : hn::Gt(c, best[v]);
      MF take = g.last ? hn::Or(better, hn::Eq(c, best[v])) : better;
      const MF c_nan = not_equal(c, c);
      take = hn::Or(take, g.last ? c_nan : hn::AndNot(not_equal(best[v], best[v]), c_nan));
      best[v] = hn::IfThenElse(take, c, best[v]);
      index[v] = hn::IfThenElse(hn::RebindMask(kI, take), at, index[v]);
    }
  }
  HWY_ALIGN int32_t out[kLanes];
  for (int v = 0; v < kMany; ++v) {
    hn::Store(index[v], kI, out);
    for (size_t i = 0; i < kLanes; ++i) y[static_cast<size_t>(v) * kLanes + i] = out[i];
  }
}

// Columns [begin, begin + lanes) of one outer index; indices are int32 lanes beside the floats.
void arg_columns(const float* x, const ArgReduceArgs& g, size_t lanes, int64_t* y) {
  const auto load = [&](int64_t a) HWY_ATTR {
    const float* p = x + a * g.inner;
    return lanes == kLanes ? hn::LoadU(kF, p) : load_n(p, lanes);
  };
  VF best = load(0);
  VI index = hn::Zero(kI);
  for (int64_t a = 1; a < g.axis; ++a) {
    const VF v = load(a);
    const MF better = g.min ? hn::Lt(v, best) : hn::Gt(v, best);
    MF take = g.last ? hn::Or(better, hn::Eq(v, best)) : better;
    // A NaN is larger than any number; between two NaNs the rule for ties decides.
    const MF v_nan = not_equal(v, v), best_nan = not_equal(best, best);
    take = hn::Or(take, hn::AndNot(best_nan, v_nan));
    if (g.last) take = hn::Or(take, hn::And(best_nan, v_nan));
    best = hn::IfThenElse(take, v, best);
    index = hn::IfThenElse(hn::RebindMask(kI, take), hn::Set(kI, static_cast<int32_t>(a)), index);
  }
  HWY_ALIGN int32_t out[kLanes];
  hn::Store(index, kI, out);
  for (size_t i = 0; i < lanes; ++i) y[i] = out[i];
}

void arg_block(const ArgReduceArgs& g, int64_t begin, int64_t end) {
  constexpr int64_t kStep = static_cast<int64_t>(kLanes);
  if (g.inner == 1) {
    for (int64_t o = begin; o < end; ++o) g.y[o] = arg_row(g.x + o * g.axis, g.axis, g.min, g.last);
    return;
  }
  for (int64_t o = begin; o < end; ++o) {
    int64_t i = 0;
    for (; i + 8 * kStep <= g.inner; i += 8 * kStep)
      arg_many<8>(g.x + o * g.axis * g.inner + i, g, g.y + o * g.inner + i);
    for (; i < g.inner; i += kStep) {
      arg_columns(g.x + o * g.axis * g.inner + i, g, static_cast<size_t>(std::min(kStep, g.inner - i)),
                  g.y + o * g.inner + i);
    }
  }
}

}  // namespace
}  // namespace trireme::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace trireme::cpu {

HWY_EXPORT(row_piece);
HWY_EXPORT(exp_piece);
HWY_EXPORT(column_piece);
HWY_EXPORT(exp_columns);
HWY_EXPORT(arg_block);

namespace {

constexpr int64_t kPiece = 8192;      // contiguous floats that one f32 sum covers
constexpr int64_t kRun = 256;         // axis elements that one f32 sum covers elsewhere
constexpr int64_t kColumnTasks = 32;  // with so many tasks, a reduction of columns is not cut along its axis
constexpr int64_t kShares = 64;       // most shares of a long reduction, for any number of threads

double start_of(ReduceOp op) {
  switch (op) {
    case ReduceOp::max:
    case ReduceOp::log_sum_exp: return -HUGE_VAL;
    case ReduceOp::min: return HUGE_VAL;
    case ReduceOp::prod: return 1.0;
    default: return 0.0;
  }
}

double join(ReduceOp op, double a, double b) {
  switch (op) {
    case ReduceOp::max:
    case ReduceOp::log_sum_exp: return a != a || a > b ? a : b;
    case ReduceOp::min: return a != a || a < b ? a : b;
    case ReduceOp::prod: return a * b;
    default: return a + b;
  }
}

float finish(ReduceOp op, double total, int64_t n) {
  switch (op) {
    case ReduceOp::mean: return static_cast<float>(total / static_cast<double>(n));
    case ReduceOp::l2: return static_cast<float>(std::sqrt(total));
    case ReduceOp::log_sum: return static_cast<float>(std::log(total));
    default: return static_cast<float>(total);
  }
}

// Result where exp(x - max) was summed; an infinite maximum is itself the result.
float log_sum_exp(double max, double sum) {
  return std::isinf(max) ? static_cast<float>(max) : static_cast<float>(max + std::log(sum));
}

// Reduces a part of a row piece by piece, in order; `max` is given for exponentials (second pass) only.
double row_part(ReduceOp op, const float* x, int64_t n, const float* max) {
  double total = max != nullptr ? 0.0 : start_of(op);
  for (int64_t i = 0; i < n; i += kPiece) {
    const size_t size = static_cast<size_t>(std::min(kPiece, n - i));
    if (max != nullptr)
      total += HWY_DYNAMIC_DISPATCH(exp_piece)(x + i, size, *max);
    else
      total = join(op, total, HWY_DYNAMIC_DISPATCH(row_piece)(op, x + i, size));
  }
  return total;
}

// Cuts one row into shares of whole pieces. Shares are joined in order, so the result does not depend on the
// number of threads.
double row_shared(ReduceOp op, const float* x, int64_t n, const float* max, base::ThreadPool& pool) {
  const int64_t pieces = (n + kPiece - 1) / kPiece;
  const int64_t shares = std::min(pieces, kShares);
  double part[kShares];
  pool.run(shares, [&](int64_t s) {
    const int64_t begin = pieces * s / shares * kPiece, end = std::min(n, pieces * (s + 1) / shares * kPiece);
    part[s] = row_part(op, x + begin, end - begin, max);
  });
  double total = max != nullptr ? 0.0 : start_of(op);
  for (int64_t s = 0; s < shares; ++s) total = max != nullptr ? total + part[s] : join(op, total, part[s]);
  return total;
}

// The same shares on this thread alone, for when there are enough rows to keep the team busy.
double row_alone(ReduceOp op, const float* x, int64_t n, const float* max) {
  const int64_t pieces = (n + kPiece - 1) / kPiece;
  const int64_t shares = std::min(pieces, kShares);
  double total = max != nullptr ? 0.0 : start_of(op);
  for (int64_t s = 0; s < shares; ++s) {
    const int64_t begin = pieces * s / shares * kPiece, end = std::min(n, pieces * (s + 1) / shares * kPiece);
    const double part = row_part(op, x + begin, end - begin, max);
    total = max != nullptr ? total + part : join(op, total, part);
  }
  return total;
}

void reduce_rows(ReduceOp op, const ReduceArgs& g, base::ThreadPool& pool) {
  const bool split_rows = g.outer < 8 && g.axis >= 4 * kPiece;
  const auto one = [&](int64_t o) {
    const float* x = g.x + o * g.axis;
    const auto total = [&](const float* max) {
      return split_rows ? row_shared(op, x, g.axis, max, pool) : row_alone(op, x, g.axis, max);
    };
    const double first = total(nullptr);
    if (op != ReduceOp::log_sum_exp) {
      g.y[o] = finish(op, first, g.axis);
      return;
    }
    const float max = static_cast<float>(first);
    g.y[o] = log_sum_exp(first, std::isinf(first) ? 0.0 : total(&max));
  };
  if (split_rows) {
    for (int64_t o = 0; o < g.outer; ++o) one(o);
    return;
  }
  pool.for_range(g.outer, std::max<int64_t>(1, 2 * kPiece / std::max<int64_t>(1, g.axis)),
                 [&](int64_t begin, int64_t end) {
                   for (int64_t o = begin; o < end; ++o) one(o);
                 });
}

// One block of columns over axis elements [begin, end), in runs of kRun.
void column_part(ReduceOp op, ColumnRun run, int64_t begin, int64_t end) {
  const float* x = run.x;
  for (int64_t a = begin; a < end; a += kRun) {
    run.x = x + a * run.step;
    run.n = std::min(kRun, end - a);
    if (run.max != nullptr)
      HWY_DYNAMIC_DISPATCH(exp_columns)(run);
    else
      HWY_DYNAMIC_DISPATCH(column_piece)(op, run);
  }
}

// Into how many shares a long axis with few columns (a bias gradient) is cut, so that shares can be tasks.
// They hold whole runs, and their number depends on the axis and the columns only.
int64_t column_shares(const ReduceArgs& g, int64_t blocks) {
  return std::clamp<int64_t>(std::min((g.axis + kRun - 1) / kRun, kColumnTasks / blocks), 1, kColumnTasks);
}

// Share `s` of `shares` of one block of columns.
void column_share(ReduceOp op, ColumnRun run, int64_t axis, int64_t s, int64_t shares) {
  std::fill_n(run.totals, run.columns, run.max != nullptr ? 0.0 : start_of(op));
  const int64_t runs = (axis + kRun - 1) / kRun;
  column_part(op, run, runs * s / shares * kRun, std::min(axis, runs * (s + 1) / shares * kRun));
}

struct ColumnBlock {
  int64_t outer, col, columns;
  ColumnRun run;
};
ColumnBlock column_block(const ReduceArgs& g, int64_t task, int64_t blocks) {
  const int64_t o = task / blocks, col = task % blocks * kColumns;
  const int64_t columns = std::min(kColumns, g.inner - col);
  return {o, col, columns, {g.x + o * g.axis * g.inner + col, 0, g.inner, columns, nullptr, nullptr}};
}

void join_shares(ReduceOp op, const double* parts, int64_t shares, int64_t columns, double* totals) {
  for (int64_t c = 0; c < columns; ++c) {
    totals[c] = start_of(op);
    for (int64_t s = 0; s < shares; ++s) totals[c] = join(op, totals[c], parts[s * kColumns + c]);
  }
}

// Reduces one outer index; the shares of its blocks are the tasks.
void reduce_columns_shared(ReduceOp op, const ReduceArgs& g, base::ThreadPool& pool) {
  double parts[kColumnTasks * kColumns], totals[kColumns];
  const int64_t blocks = (g.inner + kColumns - 1) / kColumns, shares = column_shares(g, blocks);
  pool.run(blocks * shares, [&](int64_t t) {
    ColumnBlock b = column_block(g, t / shares, blocks);
    b.run.totals = parts + t * kColumns;
    column_share(op, b.run, g.axis, t % shares, shares);
  });
  for (int64_t t = 0; t < blocks; ++t) {
    const ColumnBlock b = column_block(g, t, blocks);
    join_shares(op, parts + t * shares * kColumns, shares, b.columns, totals);
    for (int64_t c = 0; c < b.columns; ++c) g.y[b.col + c] = finish(op, totals[c], g.axis);
  }
}

// Reduces one block of one outer index on this thread, in the same shares.
void reduce_block(ReduceOp op, const ReduceArgs& g, ColumnBlock b, int64_t shares) {
  double part[kColumns], totals[kColumns];
  b.run.totals = part;
  for (int64_t s = 0; s < shares; ++s) {
    column_share(op, b.run, g.axis, s, shares);
    for (int64_t c = 0; c < b.columns; ++c) totals[c] = join(op, s == 0 ? start_of(op) : totals[c], part[c]);
  }
  float* y = g.y + b.outer * g.inner + b.col;
  if (op != ReduceOp::log_sum_exp) {
    for (int64_t c = 0; c < b.columns; ++c) y[c] = finish(op, totals[c], g.axis);
    return;
  }
  float max[kColumns];
  std::copy_n(totals, b.columns, max);
  b.run.max = max;
  column_share(op, b.run, g.axis, 0, 1);
  for (int64_t c = 0; c < b.columns; ++c) y[c] = log_sum_exp(totals[c], part[c]);
}

void reduce_columns(ReduceOp op, const ReduceArgs& g, base::ThreadPool& pool) {
  const int64_t blocks = (g.inner + kColumns - 1) / kColumns, shares = column_shares(g, blocks);
  if (op != ReduceOp::log_sum_exp && g.outer == 1 && shares > 1) return reduce_columns_shared(op, g, pool);
  const int64_t block = std::min(kColumns, g.inner);
  const int64_t grain = std::max<int64_t>(1, 2 * kPiece / std::max<int64_t>(1, g.axis * block));
  pool.for_range(g.outer * blocks, grain, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) reduce_block(op, g, column_block(g, t, blocks), shares);
  });
}

constexpr int64_t kSmall = 64;     // most elements of an outer index that are joined one by one
constexpr int64_t kSmallRow = 24;  // the same for contiguous elements: longer rows are worth vectors

bool is_small(ReduceOp op, const ReduceArgs& g) {
  return op != ReduceOp::log_sum_exp && g.axis > 0 && g.axis * g.inner <= (g.inner == 1 ? kSmallRow : kSmall);
}

// Adds the elements of each result in the order of the axis, in f32.
template <class Join>
void small_run(ReduceOp op, const ReduceArgs& g, int64_t begin, int64_t end, const Join& join_one) {
  const float start = static_cast<float>(start_of(op));
  for (int64_t o = begin; o < end; ++o) {
    const float* x = g.x + o * g.axis * g.inner;
    float acc[kSmall];
    for (int64_t i = 0; i < g.inner; ++i) acc[i] = start;
    for (int64_t a = 0; a < g.axis; ++a, x += g.inner) {
      for (int64_t i = 0; i < g.inner; ++i) acc[i] = join_one(acc[i], x[i]);
    }
    for (int64_t i = 0; i < g.inner; ++i)
      g.y[o * g.inner + i] = finish(op, static_cast<double>(acc[i]), g.axis);
  }
}

void small_block(ReduceOp op, const ReduceArgs& g, int64_t begin, int64_t end) {
  const auto run = [&](const auto& join_one) { small_run(op, g, begin, end, join_one); };
  switch (op) {
    case ReduceOp::max: return run([](float a, float v) { return v != v || v > a ? v : a; });
    case ReduceOp::min: return run([](float a, float v) { return v != v || v < a ? v : a; });
    case ReduceOp::prod: return run([](float a, float v) { return a * v; });
    case ReduceOp::l1: return run([](float a, float v) { return a + std::fabs(v); });
    case ReduceOp::l2:
    case ReduceOp::sum_square: return run([](float a, float v) { return a + v * v; });
    default: return run([](float a, float v) { return a + v; });
  }
}

}  // namespace

void reduce(ReduceOp op, const ReduceArgs& args, base::ThreadPool& pool) {
  if (args.outer <= 0 || args.inner <= 0) return;
  if (is_small(op, args)) {
    const int64_t grain = std::max<int64_t>(1, kPiece / std::max<int64_t>(1, args.axis * args.inner));
    return pool.for_range(args.outer, grain,
                          [&](int64_t begin, int64_t end) { small_block(op, args, begin, end); });
  }
  if (args.inner == 1) return reduce_rows(op, args, pool);
  reduce_columns(op, args, pool);
}

void arg_reduce(const ArgReduceArgs& args, base::ThreadPool& pool) {
  base::require(args.axis > 0, "arg reduction needs a non-empty axis");
  base::require(args.axis <= std::numeric_limits<int32_t>::max(),
                "arg reduction axis is too long: ", args.axis);
  const auto block = HWY_DYNAMIC_DISPATCH(arg_block);
  const int64_t grain = std::max<int64_t>(1, kPiece / std::max<int64_t>(1, args.axis * args.inner));
  pool.for_range(args.outer, grain, [&](int64_t begin, int64_t end) { block(args, begin, end); });
}

}  // namespace trireme::cpu
#endif
