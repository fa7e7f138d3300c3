// Training batch norm: one pass sums per channel, a second one writes; for channels last and for planes.
#include "backend/cpu/norm/batch_norm_train.h"

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "backend/cpu/simd/simd_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/norm/batch_norm_train.cc"
#include "hwy/cache_control.h"
#include "hwy/foreach_target.h"
// Must follow foreach_target.h, which sets the SIMD level.
#include "backend/cpu/simd/simd_reduce.inc"

#ifndef TRIREME_BATCH_NORM_TRAIN_ONCE
#define TRIREME_BATCH_NORM_TRAIN_ONCE
namespace trireme::cpu {

// Factors and offsets of the second pass, per channel.
struct ChannelTerms {
  const float* center;  // mean
  const float* factor;  // scale * inv_std
  const float* offset;  // forward: bias; backward: mean of g
  const float* slope;   // backward: mean(g (x - mean)) inv_std^2
};

// Two sums per channel over a range of rows, or over one plane.
struct SumsTo {
  double* first;   // forward: sum of x - center; backward: sum of g
  double* second;  // forward: sum of (x - center)^2; backward: sum of g (x - center)
  float* block;    // 2 * channels of scratch, channels last only
};

}  // namespace trireme::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace trireme::cpu::HWY_NAMESPACE {
namespace {

// Sums run over so many rows in f32 before they are added in double.
constexpr int64_t kBlockRows = 256;

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

// Streaming stores, which avoid reading the lines first; for whole, aligned vectors.
template <bool kWhole, bool kStream>
HWY_INLINE void put_last(VF v, float* p, size_t n) {
  if constexpr (kWhole && kStream) return hn::Stream(v, kF, p);
  put<kWhole>(v, p, n);
}

// Calls f(whole, c, count) for each vector of n columns; `whole` is a compile-time constant.
template <class F>
HWY_INLINE void over_columns(size_t n, const F& f) {
  size_t c = 0;
  for (; c + kLanes <= n; c += kLanes) f(std::true_type(), c, kLanes);
  if (c < n) f(std::false_type(), c, n - c);
}

// IfThenElse(v < 0, 0, v), where NaN stays NaN.
HWY_INLINE VF rectified(VF v) { return max_or_second(hn::Zero(kF), v); }
HWY_INLINE VF passed(VF before, VF g) { return hn::IfThenZeroElse(hn::Le(before, hn::Zero(kF)), g); }

void flush(float* block, size_t n, double* first, double* second) {
  for (size_t c = 0; c < n; ++c) first[c] += static_cast<double>(block[c]);
  for (size_t c = 0; c < n; ++c) second[c] += static_cast<double>(block[n + c]);
  std::fill(block, block + 2 * n, 0.0f);
}

// Sums over rows [begin, end) of [rows, channels]; load(whole, at, c, count, ...) adds to both sums.
template <class Load>
HWY_INLINE void sum_rows(int64_t channels, int64_t begin, int64_t end, const SumsTo& to, const Load& load) {
  const size_t n = static_cast<size_t>(channels);
  constexpr int64_t kStep = 8;  // rows between two accesses to the running sums
  std::fill(to.first, to.first + n, 0.0);
  std::fill(to.second, to.second + n, 0.0);
  std::fill(to.block, to.block + 2 * n, 0.0f);
  for (int64_t block = begin; block < end; block += kBlockRows) {
    const int64_t block_end = std::min(end, block + kBlockRows);
    int64_t row = block;
    for (; row < block_end; row += kStep) {
      const int64_t last = std::min(block_end, row + kStep);
      over_columns(n, [&](auto whole, size_t c, size_t count) HWY_ATTR {
        constexpr bool kWhole = decltype(whole)::value;
        VF first = get<kWhole>(to.block + c, count), second = get<kWhole>(to.block + n + c, count);
        if (HWY_LIKELY(last - row == kStep)) {
          for (int64_t r = 0; r < kStep; ++r) load(whole, (row + r) * channels, c, count, first, second);
        } else {
          for (int64_t r = row; r < last; ++r) load(whole, r * channels, c, count, first, second);
        }
        put<kWhole>(first, to.block + c, count);
        put<kWhole>(second, to.block + n + c, count);
      });
    }
    flush(to.block, n, to.first, to.second);
  }
}

void forward_sums_rows(const BatchNormTrain& g, const float* center, int64_t begin, int64_t end,
                       const SumsTo& to) {
  const float* x = g.x;
  sum_rows(g.shape.channels, begin, end, to,
           [=](auto whole, int64_t at, size_t c, size_t n, VF& first, VF& second) HWY_ATTR {
             constexpr bool kWhole = decltype(whole)::value;
             const VF d =
                 hn::Sub(get<kWhole>(x + at + static_cast<int64_t>(c), n), get<kWhole>(center + c, n));
             first = hn::Add(first, d);
             second = hn::MulAdd(d, d, second);
           });
}

template <bool kRelu, bool kResidual, bool kStream>
void forward_rows_as(const BatchNormTrain& g, const ChannelTerms& t, int64_t begin, int64_t end) {
  const size_t n = static_cast<size_t>(g.shape.channels);
  for (int64_t row = begin; row < end; ++row) {
    const float* x = g.x + row * g.shape.channels;
    const float* residual = kResidual ? g.residual + row * g.shape.channels : nullptr;
    float* y = g.y + row * g.shape.channels;
    over_columns(n, [&](auto whole, size_t c, size_t count) HWY_ATTR {
      constexpr bool kWhole = decltype(whole)::value;
      const VF d = hn::Sub(get<kWhole>(x + c, count), get<kWhole>(t.center + c, count));
      VF v = hn::MulAdd(d, get<kWhole>(t.factor + c, count), get<kWhole>(t.offset + c, count));
      if (kResidual) v = hn::Add(v, get<kWhole>(residual + c, count));
      put_last<kWhole, kStream>(kRelu ? rectified(v) : v, y + c, count);
    });
  }
}

template <bool kStream>
void forward_rows_to(const BatchNormTrain& g, const ChannelTerms& t, int64_t begin, int64_t end) {
  if (g.residual != nullptr) {
    return g.relu ? forward_rows_as<true, true, kStream>(g, t, begin, end)
                  : forward_rows_as<false, true, kStream>(g, t, begin, end);
  }
  return g.relu ? forward_rows_as<true, false, kStream>(g, t, begin, end)
                : forward_rows_as<false, false, kStream>(g, t, begin, end);
}

// Of a result larger than the last-level cache, the beginning is evicted before it is read again.
constexpr int64_t kStreamBytes = int64_t{32} << 20;

bool may_stream(const ChannelShape& s, const float* y) {
  constexpr size_t kBytes = kLanes * sizeof(float);
  return s.elements() * 4 > kStreamBytes && s.channels % static_cast<int64_t>(kLanes) == 0 &&
         reinterpret_cast<uintptr_t>(y) % kBytes == 0;
}

void forward_rows(const BatchNormTrain& g, const ChannelTerms& t, int64_t begin, int64_t end) {
  const bool in_place = g.y == g.x || g.y == g.residual;
  if (in_place || !may_stream(g.shape, g.y)) return forward_rows_to<false>(g, t, begin, end);
  forward_rows_to<true>(g, t, begin, end);
  hwy::FlushStream();
}

// Which tensor gives the mask of the ReLU.
enum class Mask : uint8_t { none, from_x, from_y };

// A vector of `n` lanes, at element `at` of the tensor and channel c.
struct Lanes {
  int64_t at;
  size_t c, n;
};

// dy, which may be the sum of two tensors.
template <bool kWhole>
HWY_INLINE VF arriving(const BatchNormGrad& g, int64_t at, size_t n) {
  const VF dy = get<kWhole>(g.dy + at, n);
  return g.dy_more == nullptr ? dy : hn::Add(dy, get<kWhole>(g.dy_more + at, n));
}

// The gradient g before the ReLU, from dy; `d` is x - mean.
template <Mask kMask, bool kWhole>
HWY_INLINE VF behind_rectifier(const BatchNormGrad& g, const float* factor, VF d, const Lanes& v) {
  const VF dy = arriving<kWhole>(g, v.at, v.n);
  if constexpr (kMask == Mask::none) return dy;
  if constexpr (kMask == Mask::from_y) return passed(get<kWhole>(g.y + v.at, v.n), dy);
  return passed(hn::MulAdd(d, get<kWhole>(factor + v.c, v.n), get<kWhole>(g.bias + v.c, v.n)), dy);
}

template <Mask kMask>
void backward_sums_rows_as(const BatchNormGrad& g, const float* factor, int64_t begin, int64_t end,
                           const SumsTo& to) {
  const BatchNormGrad call = g;
  sum_rows(g.shape.channels, begin, end, to,
           [=](auto whole, int64_t row, size_t c, size_t n, VF& first, VF& second) HWY_ATTR {
             constexpr bool kWhole = decltype(whole)::value;
             const int64_t at = row + static_cast<int64_t>(c);
             const VF d = hn::Sub(get<kWhole>(call.x + at, n), get<kWhole>(call.mean + c, n));
             const VF up = behind_rectifier<kMask, kWhole>(call, factor, d, {at, c, n});
             if (call.dresidual != nullptr) put<kWhole>(up, call.dresidual + at, n);
             first = hn::Add(first, up);
             second = hn::MulAdd(up, d, second);
           });
}

Mask mask_of(const BatchNormGrad& g) {
  return !g.relu ? Mask::none : g.y != nullptr ? Mask::from_y : Mask::from_x;
}

void backward_sums_rows(const BatchNormGrad& g, const float* factor, int64_t begin, int64_t end,
                        const SumsTo& to) {
  const Mask mask = mask_of(g);
  if (mask == Mask::none) return backward_sums_rows_as<Mask::none>(g, factor, begin, end, to);
  if (mask == Mask::from_y) return backward_sums_rows_as<Mask::from_y>(g, factor, begin, end, to);
  return backward_sums_rows_as<Mask::from_x>(g, factor, begin, end, to);
}

template <Mask kMask, bool kStream>
void backward_rows_as(const BatchNormGrad& g, const ChannelTerms& t, int64_t begin, int64_t end) {
  const size_t channels = static_cast<size_t>(g.shape.channels);
  for (int64_t row = begin; row < end; ++row) {
    over_columns(channels, [&](auto whole, size_t c, size_t n) HWY_ATTR {
      constexpr bool kWhole = decltype(whole)::value;
      const int64_t at = row * g.shape.channels + static_cast<int64_t>(c);
      const VF d = hn::Sub(get<kWhole>(g.x + at, n), get<kWhole>(t.center + c, n));
      const VF up = behind_rectifier<kMask, kWhole>(g, t.factor, d, {at, c, n});
      const VF rest =
          hn::NegMulAdd(d, get<kWhole>(t.slope + c, n), hn::Sub(up, get<kWhole>(t.offset + c, n)));
      put_last<kWhole, kStream>(hn::Mul(rest, get<kWhole>(t.factor + c, n)), g.dx + at, n);
    });
  }
}

template <bool kStream>
void backward_rows_to(const BatchNormGrad& g, const ChannelTerms& t, int64_t begin, int64_t end) {
  const Mask mask = mask_of(g);
  if (mask == Mask::none) return backward_rows_as<Mask::none, kStream>(g, t, begin, end);
  if (mask == Mask::from_y) return backward_rows_as<Mask::from_y, kStream>(g, t, begin, end);
  return backward_rows_as<Mask::from_x, kStream>(g, t, begin, end);
}

void backward_rows(const BatchNormGrad& g, const ChannelTerms& t, int64_t begin, int64_t end) {
  // In place, the line has already been read.
  const bool in_place = g.dx == g.dy || g.dx == g.x;
  if (in_place || !may_stream(g.shape, g.dx)) return backward_rows_to<false>(g, t, begin, end);
  backward_rows_to<true>(g, t, begin, end);
  hwy::FlushStream();
}

// In planes, 64 running sums in f32 cover at most 8192 values.
constexpr size_t kPiece = 8192;

// Sums of x - center and of its square over one plane.
void forward_sums_plane(const float* x, size_t n, float center, double* first, double* second) {
  const VF k = set(center);
  *first = *second = 0;
  for (size_t i = 0; i < n; i += kPiece) {
    const size_t count = std::min(kPiece, n - i);
    *first += static_cast<double>(reduce_run(
        x + i, count, 0.0f, [=](VF v, size_t) HWY_ATTR { return hn::Sub(v, k); }, AddFold()));
    *second += static_cast<double>(reduce_run(
        x + i, count, 0.0f,
        [=](VF v, size_t) HWY_ATTR {
          const VF d = hn::Sub(v, k);
          return hn::Mul(d, d);
        },
        AddFold()));
  }
}

void forward_plane(const BatchNormTrain& g, const ChannelTerms& t, int64_t plane) {
  const size_t n = static_cast<size_t>(g.shape.inner);
  const int64_t at = plane * g.shape.inner, c = plane % g.shape.channels;
  const VF center = set(t.center[c]), factor = set(t.factor[c]), offset = set(t.offset[c]);
  const bool relu = g.relu;
  const float* residual = g.residual;
  over_columns(n, [&](auto whole, size_t i, size_t count) HWY_ATTR {
    constexpr bool kWhole = decltype(whole)::value;
    const int64_t e = at + static_cast<int64_t>(i);
    VF v = hn::MulAdd(hn::Sub(get<kWhole>(g.x + e, count), center), factor, offset);
    if (residual != nullptr) v = hn::Add(v, get<kWhole>(residual + e, count));
    put<kWhole>(relu ? rectified(v) : v, g.y + e, count);
  });
}

// The gradient before the ReLU at element e of a plane.
struct PlaneMask {
  Mask mask;
  VF factor, bias;
};
template <bool kWhole>
HWY_INLINE VF plane_gradient(const BatchNormGrad& g, const PlaneMask& m, VF d, int64_t e, size_t n) {
  const VF dy = arriving<kWhole>(g, e, n);
  if (m.mask == Mask::none) return dy;
  if (m.mask == Mask::from_y) return passed(get<kWhole>(g.y + e, n), dy);
  return passed(hn::MulAdd(d, m.factor, m.bias), dy);
}

void backward_sums_plane(const BatchNormGrad& g, const ChannelTerms& t, int64_t plane, double* first,
                         double* second) {
  const int64_t at = plane * g.shape.inner, c = plane % g.shape.channels;
  const VF center = set(g.mean[c]);
  const PlaneMask mask{mask_of(g), set(t.factor[c]), set(g.bias[c])};
  *first = *second = 0;
  for (int64_t i = 0; i < g.shape.inner; i += static_cast<int64_t>(kPiece)) {
    VF sum = hn::Zero(kF), product = hn::Zero(kF);
    const size_t count = static_cast<size_t>(std::min(static_cast<int64_t>(kPiece), g.shape.inner - i));
    over_columns(count, [&](auto whole, size_t j, size_t n) HWY_ATTR {
      constexpr bool kWhole = decltype(whole)::value;
      const int64_t e = at + i + static_cast<int64_t>(j);
      const VF d = hn::Sub(get<kWhole>(g.x + e, n), center);
      const VF up = plane_gradient<kWhole>(g, mask, d, e, n);
      if (g.dresidual != nullptr) put<kWhole>(up, g.dresidual + e, n);
      sum = hn::Add(sum, up);
      product = hn::MulAdd(up, d, product);
    });
    *first += static_cast<double>(fold_lanes(sum, AddFold()));
    *second += static_cast<double>(fold_lanes(product, AddFold()));
  }
}

void backward_plane(const BatchNormGrad& g, const ChannelTerms& t, int64_t plane) {
  const int64_t at = plane * g.shape.inner, c = plane % g.shape.channels;
  const VF center = set(t.center[c]), factor = set(t.factor[c]), offset = set(t.offset[c]);
  const VF slope = set(t.slope[c]);
  const PlaneMask mask{mask_of(g), factor, set(g.bias[c])};
  over_columns(static_cast<size_t>(g.shape.inner), [&](auto whole, size_t i, size_t n) HWY_ATTR {
    constexpr bool kWhole = decltype(whole)::value;
    const int64_t e = at + static_cast<int64_t>(i);
    const VF d = hn::Sub(get<kWhole>(g.x + e, n), center);
    const VF up = plane_gradient<kWhole>(g, mask, d, e, n);
    put<kWhole>(hn::Mul(hn::NegMulAdd(d, slope, hn::Sub(up, offset)), factor), g.dx + e, n);
  });
}

}  // namespace
}  // namespace trireme::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace trireme::cpu {

HWY_EXPORT(forward_sums_rows);
HWY_EXPORT(forward_rows);
HWY_EXPORT(backward_sums_rows);
HWY_EXPORT(backward_rows);
HWY_EXPORT(forward_sums_plane);
HWY_EXPORT(forward_plane);
HWY_EXPORT(backward_sums_plane);
HWY_EXPORT(backward_plane);

namespace {

// Pieces of the sums, from the shape only: at most 64 ranges of rows of about 64 Ki elements, or the planes.
int64_t pieces_of(const ChannelShape& s) {
  if (s.inner > 1) return s.outer;
  return std::clamp<int64_t>(std::min(s.elements() / 65536, s.outer / 32), 1, 64);
}

// The workspace: two rows of sums in double per piece, two of f32 scratch per piece, four rows of terms.
struct Layout {
  int64_t pieces, channels;
  double* sums;
  float *blocks, *terms;
  Layout(const ChannelShape& s, void* workspace) : pieces(pieces_of(s)), channels(s.channels) {
    sums = static_cast<double*>(workspace);
    blocks = reinterpret_cast<float*>(sums + pieces * 2 * channels);
    terms = blocks + pieces * 2 * channels;
  }
  SumsTo piece(int64_t i) const {
    double* at = sums + i * 2 * channels;
    return {at, at + channels, blocks + i * 2 * channels};
  }
  float* term(int64_t i) const { return terms + i * channels; }
};

// Estimates the mean from some values spread over each channel, closely enough that squares around it do not
// cancel. In planes each value costs a cache line, so fewer are read.
void sample_centers(const BatchNormTrain& g, float* center, int64_t begin, int64_t end) {
  const ChannelShape& s = g.shape;
  const int64_t total = s.count(), samples = std::min<int64_t>(total, s.inner == 1 ? 32 : 4);
  const float share = 1.0f / static_cast<float>(samples);
  std::fill(center + begin, center + end, 0.0f);
  for (int64_t i = 0; i < samples; ++i) {
    const int64_t at = total * i / samples;
    const float* x = g.x + at / s.inner * s.channels * s.inner + at % s.inner;
    for (int64_t c = begin; c < end; ++c) center[c] += x[c * s.inner] * share;
  }
}

// Adds all pieces to the first in order, as one chain per channel.
void add_pieces(const Layout& at, int64_t begin, int64_t end) {
  const SumsTo total = at.piece(0);
  for (int64_t i = 1; i < at.pieces; ++i) {
    const SumsTo more = at.piece(i);
    for (int64_t c = begin; c < end; ++c) total.first[c] += more.first[c];
    for (int64_t c = begin; c < end; ++c) total.second[c] += more.second[c];
  }
}

void finish_forward(const BatchNormTrain& g, const Layout& at, int64_t begin, int64_t end) {
  const double n = static_cast<double>(g.shape.count());
  float *center = at.term(0), *factor = at.term(1);
  add_pieces(at, begin, end);
  const SumsTo sum = at.piece(0);
  for (int64_t c = begin; c < end; ++c) {
    const double shift = sum.first[c] / n;
    const double rest = sum.second[c] - shift * sum.first[c];
    const double squares = rest < 0 ? 0.0 : rest;  // NaN stays NaN
    const double inverse = 1 / std::sqrt(squares / n + g.eps);
    center[c] = g.mean[c] = static_cast<float>(static_cast<double>(center[c]) + shift);
    g.inv_std[c] = static_cast<float>(inverse);
    factor[c] = g.scale[c] * g.inv_std[c];
    // The unbiased variance of one value is undefined; 0 is stored.
    g.variance_unbiased[c] = static_cast<float>(squares / std::max(1.0, n - 1));
  }
}

void finish_backward(const BatchNormGrad& g, const Layout& at, int64_t begin, int64_t end) {
  const double n = static_cast<double>(g.shape.count());
  add_pieces(at, begin, end);
  const SumsTo sum = at.piece(0);
  for (int64_t c = begin; c < end; ++c) {
    const double inverse = static_cast<double>(g.inv_std[c]);
    g.dbias[c] = static_cast<float>(sum.first[c]);
    g.dscale[c] = static_cast<float>(sum.second[c] * inverse);
    at.term(2)[c] = static_cast<float>(sum.first[c] / n);
    at.term(3)[c] = static_cast<float>(sum.second[c] * inverse * inverse / n);
  }
}

// The size of a task of the writing passes; it does not affect the result.
constexpr int64_t kWriteElements = 16384;
int64_t row_grain(int64_t channels) { return std::max<int64_t>(1, kWriteElements / channels); }
int64_t plane_grain(int64_t inner) { return std::max<int64_t>(1, kWriteElements / inner); }
constexpr int64_t kFinishGrain = 128;  // channels

// Calls sums(begin, end, to) for each piece of the rows.
template <class Sums>
void for_pieces(const ChannelShape& s, const Layout& at, base::ThreadPool& pool, const Sums& sums) {
  pool.run(at.pieces,
           [&](int64_t i) { sums(s.outer * i / at.pieces, s.outer * (i + 1) / at.pieces, at.piece(i)); });
}

}  // namespace

int64_t batch_norm_workspace(const ChannelShape& shape) {
  return shape.channels * (pieces_of(shape) * 2 * 12 + 4 * 4);
}

void batch_norm_train(const BatchNormTrain& g, base::ThreadPool& pool) {
  const ChannelShape& s = g.shape;
  const Layout at(s, g.workspace);
  float* center = at.term(0);
  pool.for_range(s.channels, kFinishGrain, [&](int64_t b, int64_t e) { sample_centers(g, center, b, e); });
  if (s.inner == 1) {
    const auto sums = HWY_DYNAMIC_DISPATCH(forward_sums_rows);
    for_pieces(s, at, pool, [&](int64_t b, int64_t e, const SumsTo& to) { sums(g, center, b, e, to); });
  } else {
    const auto sums = HWY_DYNAMIC_DISPATCH(forward_sums_plane);
    pool.for_range(s.outer * s.channels, plane_grain(s.inner), [&](int64_t b, int64_t e) {
      for (int64_t p = b; p < e; ++p) {
        const int64_t c = p % s.channels;
        const SumsTo to = at.piece(p / s.channels);
        sums(g.x + p * s.inner, static_cast<size_t>(s.inner), center[c], to.first + c, to.second + c);
      }
    });
  }
  pool.for_range(s.channels, kFinishGrain, [&](int64_t b, int64_t e) { finish_forward(g, at, b, e); });
  const ChannelTerms terms{center, at.term(1), g.bias, nullptr};
  if (s.inner == 1) {
    const auto rows = HWY_DYNAMIC_DISPATCH(forward_rows);
    pool.for_range(s.outer, row_grain(s.channels), [&](int64_t b, int64_t e) { rows(g, terms, b, e); });
  } else {
    const auto plane = HWY_DYNAMIC_DISPATCH(forward_plane);
    pool.for_range(s.outer * s.channels, plane_grain(s.inner), [&](int64_t b, int64_t e) {
      for (int64_t p = b; p < e; ++p) plane(g, terms, p);
    });
  }
}

void batch_norm_grad(const BatchNormGrad& g, base::ThreadPool& pool) {
  const ChannelShape& s = g.shape;
  const Layout at(s, g.workspace);
  float* factor = at.term(1);
  for (int64_t c = 0; c < s.channels; ++c) factor[c] = g.scale[c] * g.inv_std[c];
  const ChannelTerms terms{g.mean, factor, at.term(2), at.term(3)};
  if (s.inner == 1) {
    const auto sums = HWY_DYNAMIC_DISPATCH(backward_sums_rows);
    for_pieces(s, at, pool, [&](int64_t b, int64_t e, const SumsTo& to) { sums(g, factor, b, e, to); });
  } else {
    const auto sums = HWY_DYNAMIC_DISPATCH(backward_sums_plane);
    pool.for_range(s.outer * s.channels, plane_grain(s.inner), [&](int64_t b, int64_t e) {
      for (int64_t p = b; p < e; ++p) {
        const SumsTo to = at.piece(p / s.channels);
        sums(g, terms, p, to.first + p % s.channels, to.second + p % s.channels);
      }
    });
  }
  pool.for_range(s.channels, kFinishGrain, [&](int64_t b, int64_t e) { finish_backward(g, at, b, e); });
  // The residual's gradient, which the first pass wrote, already has the mask of the ReLU applied.
  BatchNormGrad write = g;
  if (g.dresidual != nullptr) write.dy = g.dresidual, write.dy_more = nullptr, write.relu = false;
  if (s.inner == 1) {
    const auto rows = HWY_DYNAMIC_DISPATCH(backward_rows);
    pool.for_range(s.outer, row_grain(s.channels), [&](int64_t b, int64_t e) { rows(write, terms, b, e); });
  } else {
    const auto plane = HWY_DYNAMIC_DISPATCH(backward_plane);
    pool.for_range(s.outer * s.channels, plane_grain(s.inner), [&](int64_t b, int64_t e) {
      for (int64_t p = b; p < e; ++p) plane(write, terms, p);
    });
  }
}

}  // namespace trireme::cpu
#endif
