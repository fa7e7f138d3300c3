// Softmax kernels: a row is loaded, reduced and scaled in L1; inner axes are processed 64 columns at a time.
#include "backend/cpu/norm/softmax_rows.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "backend/cpu/simd/simd_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/norm/softmax_rows.cc"
#include "hwy/foreach_target.h"
// Must follow foreach_target.h, which sets the SIMD level.
#include "backend/cpu/simd/simd_math.inc"
#include "backend/cpu/simd/simd_reduce.inc"

HWY_BEFORE_NAMESPACE();
namespace trireme::cpu::HWY_NAMESPACE {
namespace {

// A finite maximum: exp(-inf - kLowest) is 0, not NaN. No score is below it but -inf.
constexpr float kLowest = std::numeric_limits<float>::lowest();

// Stores y = scale * x + mask and returns its maximum; the mask may be absent.
float scaled_max(const float* x, const float* mask, float scale, float* y, size_t n) {
  const VF s = set(scale);
  const float start = -std::numeric_limits<float>::infinity();
  if (mask == nullptr && scale == 1.0f) return reduce_run(x, n, start, Same(), MaxFold());
  if (mask == nullptr) {
    return reduce_run(
        x, n, start, [s](VF v, size_t) HWY_ATTR { return hn::Mul(v, s); }, MaxFold());
  }
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    hn::StoreU(hn::MulAdd(hn::LoadU(kF, x + i), s, hn::LoadU(kF, mask + i)), kF, y + i);
  }
  if (i < n) store_n(hn::MulAdd(load_n(x + i, n - i), s, load_n(mask + i, n - i)), y + i, n - i);
  return reduce_run(y, n, start, Same(), MaxFold());
}

// Stores y = exp(scale * x - max) and returns the sum of y, added in the order of reduce_run.
float exp_sum(const float* x, float scale, float max, float* y, size_t n) {
  const VF s = set(scale), m = set(max);
  const auto map = [=](VF v, size_t i) HWY_ATTR {
    const VF e = exp_nonpositive(hn::Sub(hn::Mul(v, s), m));
    if (HWY_LIKELY(i + kLanes <= n))
      hn::StoreU(e, kF, y + i);
    else
      store_n(e, y + i, n - i);
    return e;
  };
  return reduce_run(x, n, 0.0f, map, AddFold());
}

void softmax_row(const float* x, const float* mask, const SoftmaxRows& g, float* y) {
  const size_t n = static_cast<size_t>(g.cols);
  float max = scaled_max(x, mask, g.scale, y, n);
  // With a mask, y already holds the scaled row.
  const float* from = mask != nullptr ? y : x;
  const float scale = mask != nullptr ? 1.0f : g.scale;
  if (mask != nullptr && max < kLowest) max = kLowest;
  if (!g.log) {
    const float sum = exp_sum(from, scale, max, y, n);
    const VF inverse = set(sum == 0.0f ? 0.0f : 1.0f / sum);
    return map_run(y, y, n, [=](VF v) HWY_ATTR { return hn::Mul(v, inverse); });
  }
  const VF s = set(scale), m = set(max);
  const float sum = reduce_run(
      from, n, 0.0f, [=](VF v, size_t) HWY_ATTR { return exp_nonpositive(hn::Sub(hn::Mul(v, s), m)); },
      AddFold());
  const VF log_sum = set(sum == 0.0f ? 0.0f : std::log(sum));
  map_run(from, y, n, [=](VF v) HWY_ATTR { return hn::Sub(hn::Sub(hn::Mul(v, s), m), log_sum); });
}

void softmax_block(const SoftmaxRows& g, int64_t begin, int64_t end) {
  const SoftmaxMask& m = g.mask;
  for (int64_t row = begin; row < end; ++row) {
    const float* mask = nullptr;
    if (m.data != nullptr) {
      const int64_t k = row % m.inner, j = row / m.inner % m.middle, i = row / m.inner / m.middle;
      mask = m.data + i * m.stride_outer + j * m.stride_middle + k * m.stride_inner;
    }
    softmax_row(g.x + row * g.cols, mask, g, g.y + row * g.cols);
  }
}

// One vector of columns of one outer index: x[a * inner + lanes].
template <class Load, class Store>
HWY_INLINE void softmax_column(int64_t axis, bool log, const Load& load, const Store& store) {
  VF max = load(0);
  for (int64_t a = 1; a < axis; ++a) max = MaxFold()(max, load(a));
  VF sum = hn::Zero(kF);
  if (log) {
    for (int64_t a = 0; a < axis; ++a) sum = hn::Add(sum, exp_nonpositive(hn::Sub(load(a), max)));
    const VF shift = log_v(sum);
    for (int64_t a = 0; a < axis; ++a) store(a, hn::Sub(hn::Sub(load(a), max), shift));
    return;
  }
  // The exponentials are stored and scaled afterwards; x is not read again, so y may overwrite it.
  for (int64_t a = 0; a < axis; ++a) {
    const VF e = exp_nonpositive(hn::Sub(load(a), max));
    sum = hn::Add(sum, e);
    store(a, e);
  }
}

template <class Get, class Put>
HWY_INLINE void scale_column(int64_t axis, const Get& get, const Put& put) {
  VF sum = hn::Zero(kF);
  for (int64_t a = 0; a < axis; ++a) sum = hn::Add(sum, get(a));
  const VF inverse = hn::Div(set(1.0f), sum);
  for (int64_t a = 0; a < axis; ++a) put(a, hn::Mul(get(a), inverse));
}

// kMany whole vectors of columns side by side, so that memory is accessed in longer runs. Each lane is
// computed in the order of softmax_column and scale_column.
constexpr int kMany = 8;
void softmax_many(const float* x, float* y, int64_t axis, int64_t inner) {
  VF max[kMany], sum[kMany];
  const auto at = [](int v) HWY_ATTR { return static_cast<size_t>(v) * kLanes; };
  for (int v = 0; v < kMany; ++v) max[v] = hn::LoadU(kF, x + at(v));
  for (int64_t a = 1; a < axis; ++a) {
    for (int v = 0; v < kMany; ++v) max[v] = MaxFold()(max[v], hn::LoadU(kF, x + a * inner + at(v)));
  }
  for (int v = 0; v < kMany; ++v) sum[v] = hn::Zero(kF);
  for (int64_t a = 0; a < axis; ++a) {
    for (int v = 0; v < kMany; ++v) {
      const VF e = exp_nonpositive(hn::Sub(hn::LoadU(kF, x + a * inner + at(v)), max[v]));
      sum[v] = hn::Add(sum[v], e);
      hn::StoreU(e, kF, y + a * inner + at(v));
    }
  }
  for (int v = 0; v < kMany; ++v) sum[v] = hn::Div(set(1.0f), sum[v]);
  for (int64_t a = 0; a < axis; ++a) {
    for (int v = 0; v < kMany; ++v) {
      float* p = y + a * inner + at(v);
      hn::StoreU(hn::Mul(hn::LoadU(kF, p), sum[v]), kF, p);
    }
  }
}

// Columns [begin, end) of the outer * ceil(inner / kLanes) vectors.
void softmax_columns(const SoftmaxAxis& g, int64_t begin, int64_t end) {
  constexpr int64_t kStep = static_cast<int64_t>(kLanes);
  const int64_t vectors = (g.inner + kStep - 1) / kStep;
  for (int64_t t = begin; t < end; ++t) {
    const int64_t col = t % vectors * kStep;
    const int64_t base = t / vectors * g.axis * g.inner + col;
    const float* x = g.x + base;
    float* y = g.y + base;
    const int64_t left = g.inner - col;
    if (!g.log && left >= kMany * kStep && t + kMany <= end) {
      softmax_many(x, y, g.axis, g.inner);
      t += kMany - 1;
      continue;
    }
    if (left >= kStep) {
      softmax_column(
          g.axis, g.log, [&](int64_t a) HWY_ATTR { return hn::LoadU(kF, x + a * g.inner); },
          [&](int64_t a, VF v) HWY_ATTR { hn::StoreU(v, kF, y + a * g.inner); });
      if (g.log) continue;
      scale_column(
          g.axis, [&](int64_t a) HWY_ATTR { return hn::LoadU(kF, y + a * g.inner); },
          [&](int64_t a, VF v) HWY_ATTR { hn::StoreU(v, kF, y + a * g.inner); });
    } else {
      const size_t n = static_cast<size_t>(left);
      softmax_column(
          g.axis, g.log, [&](int64_t a) HWY_ATTR { return load_n(x + a * g.inner, n); },
          [&](int64_t a, VF v) HWY_ATTR { store_n(v, y + a * g.inner, n); });
      if (g.log) continue;
      scale_column(
          g.axis, [&](int64_t a) HWY_ATTR { return load_n(y + a * g.inner, n); },
          [&](int64_t a, VF v) HWY_ATTR { store_n(v, y + a * g.inner, n); });
    }
  }
}

void softmax_grad_block(const SoftmaxGrad& g, int64_t begin, int64_t end) {
  const size_t n = static_cast<size_t>(g.cols);
  const VF scale = set(g.scale);
  for (int64_t row = begin; row < end; ++row) {
    const float* y = g.y + row * g.cols;
    const float* dy = g.dy + row * g.cols;
    float* dx = g.dx + row * g.cols;
    const auto load_y = [=](size_t i) HWY_ATTR {
      return i + kLanes <= n ? hn::LoadU(kF, y + i) : load_n(y + i, n - i);
    };
    const bool log = g.log;
    const float sum = reduce_run(
        dy, n, 0.0f, [=](VF v, size_t i) HWY_ATTR { return log ? v : hn::Mul(v, load_y(i)); }, AddFold());
    const VF s = set(sum);
    for (size_t i = 0; i < n; i += kLanes) {
      const bool whole = i + kLanes <= n;
      const VF v = whole ? hn::LoadU(kF, dy + i) : load_n(dy + i, n - i);
      const VF yv = load_y(i);
      const VF d = g.log ? hn::NegMulAdd(exp_v(yv), s, v) : hn::Mul(yv, hn::Sub(v, s));
      if (whole)
        hn::StoreU(hn::Mul(d, scale), kF, dx + i);
      else
        store_n(hn::Mul(d, scale), dx + i, n - i);
    }
  }
}

// One vector of columns: sums down the axis, then the differences.
template <class Load, class Store>
HWY_INLINE void softmax_grad_column(const SoftmaxAxisGrad& g, const float* y, const float* dy,
                                    const Load& load, const Store& store) {
  VF sum = hn::Zero(kF);
  for (int64_t a = 0; a < g.axis; ++a) {
    const VF d = load(dy + a * g.inner);
    sum = g.log ? hn::Add(sum, d) : hn::MulAdd(d, load(y + a * g.inner), sum);
  }
  for (int64_t a = 0; a < g.axis; ++a) {
    const VF d = load(dy + a * g.inner), v = load(y + a * g.inner);
    store(a, g.log ? hn::NegMulAdd(exp_v(v), sum, d) : hn::Mul(v, hn::Sub(d, sum)));
  }
}

// Columns [begin, end) of the outer * ceil(inner / kLanes) vectors.
void softmax_grad_columns(const SoftmaxAxisGrad& g, int64_t begin, int64_t end) {
  constexpr int64_t kStep = static_cast<int64_t>(kLanes);
  const int64_t vectors = (g.inner + kStep - 1) / kStep;
  for (int64_t t = begin; t < end; ++t) {
    const int64_t col = t % vectors * kStep, base = t / vectors * g.axis * g.inner + col;
    float* dx = g.dx + base;
    if (g.inner - col >= kStep) {
      softmax_grad_column(
          g, g.y + base, g.dy + base, [](const float* p) HWY_ATTR { return hn::LoadU(kF, p); },
          [&](int64_t a, VF v) HWY_ATTR { hn::StoreU(v, kF, dx + a * g.inner); });
    } else {
      const size_t n = static_cast<size_t>(g.inner - col);
      softmax_grad_column(
          g, g.y + base, g.dy + base, [n](const float* p) HWY_ATTR { return load_n(p, n); },
          [&](int64_t a, VF v) HWY_ATTR { store_n(v, dx + a * g.inner, n); });
    }
  }
}

int64_t column_step() { return static_cast<int64_t>(kLanes); }

}  // namespace
}  // namespace trireme::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace trireme::cpu {

HWY_EXPORT(softmax_block);
HWY_EXPORT(softmax_columns);
HWY_EXPORT(softmax_grad_block);
HWY_EXPORT(softmax_grad_columns);
HWY_EXPORT(column_step);

namespace {
// 4096 elements of softmax take some microseconds.
int64_t row_grain(int64_t cols) { return std::max<int64_t>(1, 4096 / std::max<int64_t>(1, cols)); }
}  // namespace

void softmax_rows(const SoftmaxRows& args, base::ThreadPool& pool) {
  if (args.cols <= 0) return;
  const auto block = HWY_DYNAMIC_DISPATCH(softmax_block);
  pool.for_range(args.rows, row_grain(args.cols),
                 [&](int64_t begin, int64_t end) { block(args, begin, end); });
}

void softmax_axis(const SoftmaxAxis& args, base::ThreadPool& pool) {
  if (args.axis <= 0 || args.inner <= 0) return;
  if (args.inner == 1) {
    return softmax_rows({args.x, args.y, args.outer, args.axis, 1.0f, {}, args.log}, pool);
  }
  const int64_t step = HWY_DYNAMIC_DISPATCH(column_step)();
  const auto columns = HWY_DYNAMIC_DISPATCH(softmax_columns);
  const int64_t vectors = args.outer * ((args.inner + step - 1) / step);
  pool.for_range(vectors, row_grain(args.axis * step),
                 [&](int64_t begin, int64_t end) { columns(args, begin, end); });
}

void softmax_rows_grad(const SoftmaxGrad& args, base::ThreadPool& pool) {
  if (args.cols <= 0) return;
  const auto block = HWY_DYNAMIC_DISPATCH(softmax_grad_block);
  pool.for_range(args.rows, row_grain(args.cols),
                 [&](int64_t begin, int64_t end) { block(args, begin, end); });
}

void softmax_axis_grad(const SoftmaxAxisGrad& args, base::ThreadPool& pool) {
  if (args.axis <= 0 || args.inner <= 0) return;
  if (args.inner == 1) {
    return softmax_rows_grad({.y = args.y,
                              .dy = args.dy,
                              .dx = args.dx,
                              .rows = args.outer,
                              .cols = args.axis,
                              .scale = 1.0f,
                              .log = args.log},
                             pool);
  }
  const int64_t step = HWY_DYNAMIC_DISPATCH(column_step)();
  const auto columns = HWY_DYNAMIC_DISPATCH(softmax_grad_columns);
  const int64_t vectors = args.outer * ((args.inner + step - 1) / step);
  pool.for_range(vectors, row_grain(args.axis * step),
                 [&](int64_t begin, int64_t end) { columns(args, begin, end); });
}

}  // namespace trireme::cpu
#endif
