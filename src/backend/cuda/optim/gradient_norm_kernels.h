// Norms of gradients, whether they are finite, and the factor that clips them.
#pragma once

#include <cmath>
#include <cstdint>

#include "backend/cuda/optim/squares_kernels.h"
#include "backend/cuda/optim/update_table.h"

namespace trireme::cuda {

/// Flags of chunks: 1 where an element is infinite or NaN.
struct FindNonFinite {
  UpdateTable table;  // param alone
  uint8_t* flags;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    float* scratch = lane.template shared<float>();
    for (int64_t chunk = lane.block(); chunk < table.first_chunk[table.count]; chunk += lane.blocks()) {
      const int at = table.group_of(chunk);
      const UpdateGroup& g = table.group[at];
      const int64_t begin = (chunk - table.first_chunk[at]) * UpdateTable::kChunk;
      const int64_t end = begin + UpdateTable::kChunk < g.n ? begin + UpdateTable::kChunk : g.n;
      float bad = 0;
      for (int64_t i = begin + lane.thread(); i < end; i += lane.threads()) {
        const float v = g.param[i];
        if (!(v - v == 0)) bad = 1;
      }
      bad = block_reduce(lane, bad, scratch, Larger{});
      if (lane.thread() == 0) flags[chunk] = bad != 0 ? 1 : 0;
    }
  }
};

/// *out = no flag is set. One block.
struct NoFlag {
  const uint8_t* flags;
  uint8_t* out;
  int64_t n;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    float bad = 0;
    for (int64_t i = lane.thread(); i < n; i += lane.threads()) bad = flags[i] != 0 ? 1.0f : bad;
    bad = block_reduce(lane, bad, lane.template shared<float>(), Larger{});
    if (lane.thread() == 0) *out = bad == 0 ? 1 : 0;
  }
};

/// Where the blocks of a tensor stand among gathered sums: `count` on each of `parts` ranks, `stride` apart.
struct GatheredSquares {
  const double* at;
  int64_t first, count, parts, stride;
};

struct GatheredTable {
  static constexpr int kMost = 64;
  GatheredSquares group[kMost];
  int count;
};

/// The sum of each tensor's blocks in the order of the whole tensor: a thread a tensor. To sums[first ...].
struct SumGathered {
  GatheredTable table;
  double* sums;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    for (int t = lane.thread(); t < table.count; t += lane.threads()) {
      const GatheredSquares& g = table.group[t];
      double sum = 0;
      for (int64_t part = 0; part < g.parts; ++part) {
        for (int64_t i = 0; i < g.count; ++i) sum += g.at[g.first + part * g.stride + i];
      }
      sums[t] = sum;
    }
  }
};

/// The sum of all tensors, or its root in f32. One block.
struct JoinGathered {
  const double* sums;
  int64_t n;
  float* root;  // or null: sum
  double* sum;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    double total = 0;
    for (int64_t i = lane.thread(); i < n; i += lane.threads()) total += sums[i];
    total = block_reduce(lane, total, lane.template shared<double>(), PlusWide{});
    if (lane.thread() != 0) return;
    if (root != nullptr) *root = static_cast<float>(sqrt(total));
    if (sum != nullptr) *sum = total;
  }
};

/// See clip_coefficient in ops/optim: grad_scale min(1, max_norm / (n + eps)), whether to skip, n.
struct ClipCoefficient {
  const float *norm, *grad_scale, *norm_limit, *loss, *loss_limit;  // all but norm may be null
  float* coefficient;
  uint8_t* skip;  // or null
  float* scaled;  // or null
  double max_norm, epsilon;
  bool skip_nonfinite;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    if (lane.thread() != 0) return;
    const double scale = grad_scale == nullptr ? 1 : static_cast<double>(*grad_scale);
    const double n = static_cast<double>(*norm) * scale, share = max_norm / (n + epsilon);
    const double factor = max_norm > 0 && share < 1 ? share : 1.0;
    const double l = loss == nullptr ? 0 : static_cast<double>(*loss);
    const bool is_finite = n - n == 0 && l - l == 0;
    const bool too_big = (norm_limit != nullptr && !(n <= static_cast<double>(*norm_limit))) ||
                         (loss_limit != nullptr && !(l <= static_cast<double>(*loss_limit)));
    *coefficient = static_cast<float>(factor * scale);
    // What is not finite is the business of skip_nonfinite, not of the limits.
    if (skip != nullptr) *skip = (is_finite ? too_big : skip_nonfinite) ? 1 : 0;
    if (scaled != nullptr) *scaled = static_cast<float>(n);
  }
};

}  // namespace trireme::cuda
