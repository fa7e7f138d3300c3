// Group norm with channels last: column sums over blocks of points, then one affine pass.
#include "backend/cpu/norm/group_norm_last.h"

#include <algorithm>
#include <cmath>

#include "backend/cpu/norm/norm_rows.h"
#include "base/error.h"

#include "backend/cpu/simd/simd_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/norm/group_norm_last.cc"
#include "hwy/foreach_target.h"
// Must follow foreach_target.h, which sets the SIMD level.
#include "backend/cpu/simd/simd_vector.inc"

#ifndef TRIREME_GROUP_NORM_TYPES
#define TRIREME_GROUP_NORM_TYPES
namespace trireme::cpu {

/// A block of points of one image whose columns are summed together.
struct PointBlock {
  const float* x;  // [points, channels]
  int64_t points, channels;
  const float* centre;  // [channels]: sums squares around it; null: sums the values themselves
  float* sums;          // [channels]
};

}  // namespace trireme::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace trireme::cpu::HWY_NAMESPACE {
namespace {

/// Sums kMany vectors of columns from `c` on; the last one has `left` floats.
template <int kMany, bool kSquares>
HWY_INLINE void sum_some(const PointBlock& b, int64_t c, size_t left) {
  VF sum[kMany], centre[kMany];
  const auto load = [&](const float* p, int v) HWY_ATTR {
    const bool is_part = v + 1 == kMany && left < kLanes;
    return is_part ? load_n(p + static_cast<size_t>(v) * kLanes, left)
                   : hn::LoadU(kF, p + static_cast<size_t>(v) * kLanes);
  };
  for (int v = 0; v < kMany; ++v) {
    sum[v] = hn::Zero(kF);
    centre[v] = kSquares ? load(b.centre + c, v) : hn::Zero(kF);
  }
  const float* x = b.x + c;
  for (int64_t p = 0; p < b.points; ++p, x += b.channels) {
#pragma GCC unroll 4
    for (int v = 0; v < kMany; ++v) {
      const VF value = load(x, v);
      if constexpr (kSquares) {
        const VF d = hn::Sub(value, centre[v]);
        sum[v] = hn::MulAdd(d, d, sum[v]);
      } else {
        sum[v] = hn::Add(sum[v], value);
      }
    }
  }
  for (int v = 0; v < kMany; ++v) {
    const size_t n = v + 1 == kMany ? left : kLanes;
    float* to = b.sums + c + static_cast<int64_t>(v) * static_cast<int64_t>(kLanes);
    if (n >= kLanes)
      hn::StoreU(sum[v], kF, to);
    else
      store_n(sum[v], to, n);
  }
}

template <bool kSquares>
void sum_columns(const PointBlock& b) {
  constexpr int64_t kStep = static_cast<int64_t>(kLanes);
  int64_t c = 0;
  for (; c + 4 * kStep <= b.channels; c += 4 * kStep) sum_some<4, kSquares>(b, c, kLanes);
  for (; c < b.channels; c += kStep)
    sum_some<1, kSquares>(b, c, static_cast<size_t>(std::min(kStep, b.channels - c)));
}

void sum_points(const PointBlock& b) { b.centre == nullptr ? sum_columns<false>(b) : sum_columns<true>(b); }

}  // namespace
}  // namespace trireme::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace trireme::cpu {

HWY_EXPORT(sum_points);

namespace {

constexpr int64_t kBlockPoints = 128;

int64_t blocks_of(const GroupNormLast& g) { return (g.points + kBlockPoints - 1) / kBlockPoints; }

/// Adds the sums of an image's blocks [blocks, channels] per group, divided by the elements of a group.
void group_means(const GroupNormLast& g, const float* sums, double* mean) {
  const int64_t each = g.channels / g.groups, blocks = blocks_of(g);
  for (int64_t i = 0; i < g.groups; ++i) {
    double total = 0;
    for (int64_t c = i * each; c < (i + 1) * each; ++c) {
      for (int64_t b = 0; b < blocks; ++b) total += static_cast<double>(sums[b * g.channels + c]);
    }
    mean[i] = total / static_cast<double>(each * g.points);
  }
}

/// Parts of an image's workspace: block sums, then mean, scale and offset of each channel.
struct ImageParts {
  float *sums, *mean, *scale, *offset;
};

}  // namespace

size_t group_norm_last_workspace_bytes(const GroupNormLast& g) {
  const int64_t image = (blocks_of(g) + 3) * g.channels;
  return static_cast<size_t>(g.batch * image) * sizeof(float) +
         static_cast<size_t>(2 * g.groups * g.batch) * sizeof(double) + sizeof(double);
}

void group_norm_last(const GroupNormLast& g, void* workspace, base::ThreadPool& pool) {
  base::require(g.groups > 0 && g.channels % g.groups == 0,
                "group norm needs groups that divide channels: ", g.groups, " of ", g.channels);
  if (g.batch <= 0 || g.points <= 0 || g.channels <= 0) return;
  const int64_t blocks = blocks_of(g), each = g.channels / g.groups, image_floats = g.points * g.channels;
  const uintptr_t at = (reinterpret_cast<uintptr_t>(workspace) + 7) & ~uintptr_t{7};
  double* moments = reinterpret_cast<double*>(at);  // [batch, 2, groups]
  float* floats = reinterpret_cast<float*>(moments + 2 * g.groups * g.batch);
  const auto parts = [&](int64_t image) {
    float* sums = floats + image * (blocks + 3) * g.channels;
    float* mean = sums + blocks * g.channels;
    return ImageParts{sums, mean, mean + g.channels, mean + 2 * g.channels};
  };
  const auto points = HWY_DYNAMIC_DISPATCH(sum_points);
  const auto sum_blocks = [&](bool squares) {
    const int64_t grain = std::max<int64_t>(1, 16384 / (kBlockPoints * g.channels));
    pool.for_range(g.batch * blocks, grain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t image = i / blocks, first = i % blocks * kBlockPoints;
        const ImageParts p = parts(image);
        points({g.x + image * image_floats + first * g.channels, std::min(kBlockPoints, g.points - first),
                g.channels, squares ? p.mean : nullptr, p.sums + i % blocks * g.channels});
      }
    });
  };
  sum_blocks(false);
  for (int64_t n = 0; n < g.batch; ++n) {
    const ImageParts p = parts(n);
    double* mean = moments + 2 * n * g.groups;
    group_means(g, p.sums, mean);
    for (int64_t c = 0; c < g.channels; ++c) p.mean[c] = static_cast<float>(mean[c / each]);
  }
  sum_blocks(true);
  for (int64_t n = 0; n < g.batch; ++n) {
    const ImageParts p = parts(n);
    double* variance = moments + (2 * n + 1) * g.groups;
    group_means(g, p.sums, variance);
    for (int64_t c = 0; c < g.channels; ++c) {
      const double inverse = 1.0 / std::sqrt(variance[c / each] + static_cast<double>(g.eps));
      const double scale = inverse * (g.scale == nullptr ? 1.0 : static_cast<double>(g.scale[c]));
      p.scale[c] = static_cast<float>(scale);
      p.offset[c] = static_cast<float>((g.bias == nullptr ? 0.0 : static_cast<double>(g.bias[c])) -
                                       static_cast<double>(p.mean[c]) * scale);
    }
    channel_affine(
        {g.x + n * image_floats, g.y + n * image_floats, p.scale, p.offset, g.points, g.channels, 1}, pool);
  }
}

}  // namespace trireme::cpu
#endif
