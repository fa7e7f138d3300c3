// Normalisation kernels: statistics by the fixed-order row reduction, then one scaling pass while the row is
// in cache.
#include "backend/cpu/norm/norm_rows.h"

#include <algorithm>
#include <cmath>

#include "backend/cpu/simd/simd_targets.h"
#include "base/error.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/norm/norm_rows.cc"
#include "hwy/foreach_target.h"
// Must follow foreach_target.h, which sets the SIMD level.
#include "backend/cpu/simd/simd_moments.inc"

HWY_BEFORE_NAMESPACE();
namespace trireme::cpu::HWY_NAMESPACE {
namespace {

void add_run(const float* a, const float* b, float* y, size_t n) {
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    hn::StoreU(hn::Add(hn::LoadU(kF, a + i), hn::LoadU(kF, b + i)), kF, y + i);
  if (i < n) store_n(hn::Add(load_n(a + i, n - i), load_n(b + i, n - i)), y + i, n - i);
}

// y = (x - mean) * inverse * (scale + offset) + bias; scale and bias are optional vectors of n.
struct RowScale {
  float mean, inverse, offset;
  const float* scale;
  const float* bias;
};

template <bool kScale, bool kBias>
HWY_INLINE void scale_run(const float* x, float* y, size_t n, const RowScale& r) {
  const VF mean = set(r.mean), inverse = set(r.inverse), offset = set(r.offset);
  const auto f = [&](VF v, VF s, VF b) HWY_ATTR {
    VF t = hn::Mul(hn::Sub(v, mean), inverse);
    if (kScale) t = hn::Mul(t, hn::Add(s, offset));
    return kBias ? hn::Add(t, b) : t;
  };
  const VF none = hn::Zero(kF);
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const VF s = kScale ? hn::LoadU(kF, r.scale + i) : none;
    const VF b = kBias ? hn::LoadU(kF, r.bias + i) : none;
    hn::StoreU(f(hn::LoadU(kF, x + i), s, b), kF, y + i);
  }
  if (i == n) return;
  const VF s = kScale ? load_n(r.scale + i, n - i) : none;
  const VF b = kBias ? load_n(r.bias + i, n - i) : none;
  store_n(f(load_n(x + i, n - i), s, b), y + i, n - i);
}

void scale_row(const float* x, float* y, size_t n, const RowScale& r) {
  if (r.scale != nullptr && r.bias != nullptr) return scale_run<true, true>(x, y, n, r);
  if (r.scale != nullptr) return scale_run<true, false>(x, y, n, r);
  if (r.bias != nullptr) return scale_run<false, true>(x, y, n, r);
  scale_run<false, false>(x, y, n, r);
}

// The row to normalise: x, or x + residual, which is stored in sum_out or, if nobody asks for it, in y.
const float* with_residual(const LayerNorm& g, int64_t row, size_t n) {
  const float* x = g.x + row * g.cols;
  if (g.residual == nullptr) return x;
  float* sum = (g.sum_out != nullptr ? g.sum_out : g.y) + row * g.cols;
  add_run(x, g.residual + row * g.cols, sum, n);
  return sum;
}

void layer_norm_block(const LayerNorm& g, int64_t begin, int64_t end) {
  const size_t n = static_cast<size_t>(g.cols);
  for (int64_t row = begin; row < end; ++row) {
    const float* x = with_residual(g, row, n);
    const auto [mean, inverse] = row_moments(x, n, g.eps, false);
    scale_row(x, g.y + row * g.cols, n, {mean, inverse, 0.0f, g.scale, g.bias});
    if (g.mean_out != nullptr) g.mean_out[row] = mean;
    if (g.inverse_out != nullptr) g.inverse_out[row] = inverse;
  }
}

void rms_norm_block(const LayerNorm& g, float offset, int64_t begin, int64_t end) {
  const size_t n = static_cast<size_t>(g.cols);
  for (int64_t row = begin; row < end; ++row) {
    const float* x = with_residual(g, row, n);
    const float inverse = row_moments(x, n, g.eps, true).inverse;
    scale_row(x, g.y + row * g.cols, n, {0.0f, inverse, offset, g.scale, nullptr});
    if (g.inverse_out != nullptr) g.inverse_out[row] = inverse;
  }
}

void affine_run(const float* x, float* y, size_t n, float scale, float bias) {
  const VF s = set(scale), b = set(bias);
  map_run(x, y, n, [=](VF v) HWY_ATTR { return hn::MulAdd(v, s, b); });
}

// One group of one image: `index` counts over batch * groups.
void group_norm_one(const GroupNorm& g, int64_t index) {
  const int64_t per_group = g.channels / g.groups;
  const int64_t first = index % g.groups * per_group;
  const size_t n = static_cast<size_t>(per_group * g.inner);
  const float* x = g.x + index * per_group * g.inner;
  float* y = g.y + index * per_group * g.inner;
  const float mean = static_cast<float>(sum_plain(x, n) / static_cast<double>(n));
  const double variance = sum_squares(x, n, mean) / static_cast<double>(n);
  const double inverse = 1.0 / std::sqrt(variance + static_cast<double>(g.eps));
  for (int64_t c = 0; c < per_group; ++c) {
    const double gamma = g.scale != nullptr ? static_cast<double>(g.scale[first + c]) : 1.0;
    const double beta = g.bias != nullptr ? static_cast<double>(g.bias[first + c]) : 0.0;
    const double scale = gamma * inverse;
    affine_run(x + c * g.inner, y + c * g.inner, static_cast<size_t>(g.inner), static_cast<float>(scale),
               static_cast<float>(beta - static_cast<double>(mean) * scale));
  }
}

void affine_rows(const ChannelAffine& g, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    const int64_t c = row % g.channels;
    affine_run(g.x + row * g.inner, g.y + row * g.inner, static_cast<size_t>(g.inner), g.scale[c], g.bias[c]);
  }
}

// With inner == 1 the channels are the columns.
void affine_columns(const ChannelAffine& g, int64_t begin, int64_t end) {
  const size_t n = static_cast<size_t>(g.channels);
  for (int64_t row = begin; row < end; ++row) {
    const float* x = g.x + row * g.channels;
    float* y = g.y + row * g.channels;
    size_t i = 0;
    for (; i + kLanes <= n; i += kLanes) {
      hn::StoreU(hn::MulAdd(hn::LoadU(kF, x + i), hn::LoadU(kF, g.scale + i), hn::LoadU(kF, g.bias + i)), kF,
                 y + i);
    }
    const size_t left = n - i;
    if (left == 0) continue;
    store_n(hn::MulAdd(load_n(x + i, left), load_n(g.scale + i, left), load_n(g.bias + i, left)), y + i,
            left);
  }
}

void l2_row(const float* x, float* y, int64_t cols, float eps) {
  const size_t n = static_cast<size_t>(cols);
  const float norm = static_cast<float>(std::sqrt(sum_squares(x, n, 0.0f)));
  const VF inverse = set(1.0f / std::max(norm, eps));
  map_run(x, y, n, [=](VF v) HWY_ATTR { return hn::Mul(v, inverse); });
}

// Columns [begin, end) of one image, 4 vectors at a time in registers over all tokens.
void mean_pool_columns(const MeanPool& g, int64_t image, int64_t begin, int64_t end) {
  const float* mask = g.mask != nullptr ? g.mask + image * g.tokens : nullptr;
  float count = mask == nullptr ? static_cast<float>(g.tokens) : 0.0f;
  for (int64_t t = 0; mask != nullptr && t < g.tokens; ++t) count += mask[t];
  const VF inverse = set(1.0f / std::max(count, 1e-9f));
  constexpr int64_t kStep = static_cast<int64_t>(kLanes);
  for (int64_t c = begin; c < end; c += kStep) {
    const size_t left = static_cast<size_t>(std::min(end - c, kStep));
    const float* x = g.x + image * g.tokens * g.width + c;
    VF sum = hn::Zero(kF);
    for (int64_t t = 0; t < g.tokens; ++t) {
      if (mask != nullptr && mask[t] == 0.0f) continue;
      const float* p = x + t * g.width;
      const VF v = left == kLanes ? hn::LoadU(kF, p) : load_n(p, left);
      sum = mask == nullptr ? hn::Add(sum, v) : hn::MulAdd(v, set(mask[t]), sum);
    }
    float* y = g.y + image * g.width + c;
    if (left == kLanes)
      hn::StoreU(hn::Mul(sum, inverse), kF, y);
    else
      store_n(hn::Mul(sum, inverse), y, left);
  }
}

}  // namespace
}  // namespace trireme::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace trireme::cpu {

HWY_EXPORT(layer_norm_block);
HWY_EXPORT(rms_norm_block);
HWY_EXPORT(group_norm_one);
HWY_EXPORT(affine_rows);
HWY_EXPORT(affine_columns);
HWY_EXPORT(l2_row);
HWY_EXPORT(mean_pool_columns);

namespace {
int64_t row_grain(int64_t cols) { return std::max<int64_t>(1, 8192 / std::max<int64_t>(1, cols)); }
}  // namespace

void layer_norm(const LayerNorm& args, base::ThreadPool& pool) {
  if (args.cols <= 0) return;
  const auto block = HWY_DYNAMIC_DISPATCH(layer_norm_block);
  pool.for_range(args.rows, row_grain(args.cols), [&](int64_t b, int64_t e) { block(args, b, e); });
}

void rms_norm(const LayerNorm& args, base::ThreadPool& pool, float scale_offset) {
  if (args.cols <= 0) return;
  const auto block = HWY_DYNAMIC_DISPATCH(rms_norm_block);
  pool.for_range(args.rows, row_grain(args.cols),
                 [&](int64_t b, int64_t e) { block(args, scale_offset, b, e); });
}

void group_norm(const GroupNorm& args, base::ThreadPool& pool) {
  base::require(args.groups > 0 && args.channels % args.groups == 0,
                "group norm needs groups that divide channels: ", args.groups, " of ", args.channels);
  if (args.inner <= 0 || args.channels <= 0) return;
  const auto one = HWY_DYNAMIC_DISPATCH(group_norm_one);
  const int64_t grain = row_grain(args.channels / args.groups * args.inner);
  pool.for_range(args.batch * args.groups, grain, [&](int64_t b, int64_t e) {
    for (int64_t i = b; i < e; ++i) one(args, i);
  });
}

void channel_affine(const ChannelAffine& args, base::ThreadPool& pool) {
  const bool columns = args.inner == 1;
  const auto block = columns ? HWY_DYNAMIC_DISPATCH(affine_columns) : HWY_DYNAMIC_DISPATCH(affine_rows);
  const int64_t rows = columns ? args.outer : args.outer * args.channels;
  pool.for_range(rows, row_grain(columns ? args.channels : args.inner),
                 [&](int64_t b, int64_t e) { block(args, b, e); });
}

void fold_batch_norm(const BatchNormFold& from, int64_t channels, float* scale, float* bias) {
  for (int64_t c = 0; c < channels; ++c) {
    const double gamma = from.gamma != nullptr ? static_cast<double>(from.gamma[c]) : 1.0;
    const double beta = from.beta != nullptr ? static_cast<double>(from.beta[c]) : 0.0;
    const double s = gamma / std::sqrt(static_cast<double>(from.variance[c]) + static_cast<double>(from.eps));
    scale[c] = static_cast<float>(s);
    bias[c] = static_cast<float>(beta - static_cast<double>(from.mean[c]) * s);
  }
}

void l2_normalize_rows(const L2Rows& args, base::ThreadPool& pool) {
  const auto row = HWY_DYNAMIC_DISPATCH(l2_row);
  pool.for_range(args.rows, row_grain(args.cols), [&](int64_t b, int64_t e) {
    for (int64_t r = b; r < e; ++r) row(args.x + r * args.cols, args.y + r * args.cols, args.cols, args.eps);
  });
}

void mean_pool(const MeanPool& args, base::ThreadPool& pool) {
  const auto columns = HWY_DYNAMIC_DISPATCH(mean_pool_columns);
  // A block of 64 columns is four cache lines per token: enough work for a task from a few dozen tokens on.
  constexpr int64_t kBlock = 64;
  const int64_t blocks = (args.width + kBlock - 1) / kBlock;
  pool.for_range(args.batch * blocks, row_grain(args.tokens * kBlock), [&](int64_t b, int64_t e) {
    for (int64_t i = b; i < e; ++i) {
      const int64_t first = i % blocks * kBlock;
      columns(args, i / blocks, first, std::min(args.width, first + kBlock));
    }
  });
}

}  // namespace trireme::cpu
#endif
