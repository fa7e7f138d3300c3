// Backward attention kernels. Scores lie as [keys, queries] with queries in the lanes, like forward; the
// products that sum over queries put channels in the lanes.
#include "backend/cpu/attention/attention_grad.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>

#include "backend/cpu/simd/simd_targets.h"
#include "base/error.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/attention/attention_grad.cc"
#include "hwy/foreach_target.h"
// After foreach_target, which sets the level.
#include "backend/cpu/simd/simd_math.inc"

HWY_BEFORE_NAMESPACE();
namespace trireme::cpu::HWY_NAMESPACE {
namespace {

#include "backend/cpu/attention/attention_blocks.inc"

// Per-task memory, on the stack. Channels of row-major blocks are padded with zeros to whole vectors.
struct Scratch {
  alignas(64) float q_across[kAttentionMaxDim * kBlock];   // [head_dim, kBlock] scale q^T
  alignas(64) float dy_across[kAttentionMaxDim * kBlock];  // [value_dim, kBlock] dy^T
  alignas(64) float q[kBlock * kAttentionMaxDim];          // [queries, padded head_dim] scale q
  alignas(64) float dy[kBlock * kAttentionMaxDim];         // [queries, padded value_dim]
  alignas(64) float scores[kKeys * kBlock];                // [keys of the step, kBlock]: s, then p
  alignas(64) float ds[kKeys * kBlock];                    // dp, then ds
  alignas(64) float slope[kKeys * kBlock];                 // derivative of capped scores
  alignas(64) float dq[kAttentionMaxDim * kBlock];         // [head_dim, kBlock]
  alignas(64) float lse[kBlock], delta[kBlock];            // per query
};

// Sums of one key head over its queries, in the workspace of the lane.
struct KeySums {
  float *dk, *dv;           // [keys, dk_step], [keys, dv_step]
  size_t dk_step, dv_step;  // channels padded to whole vectors
};

size_t padded(int64_t channels) { return (static_cast<size_t>(channels) + kLanes - 1) / kLanes * kLanes; }

// Rows of a block as they lie and transposed; lanes and channels without data are 0.
struct BlockRows {
  const float* from;
  int64_t stride;
  int64_t channels;
  float *rows, *across;
};

HWY_NOINLINE void load_rows(const BlockRows& b, size_t queries, float factor) {
  const size_t dim = static_cast<size_t>(b.channels), step = padded(b.channels);
  for (size_t i = 0; i < queries; ++i) {
    const float* from = b.from + static_cast<int64_t>(i) * b.stride;
    float* to = b.rows + i * step;
    for (size_t j = 0; j < dim; ++j) to[j] = from[j] * factor;
    std::fill(to + dim, to + step, 0.0f);
  }
  if (queries < kBlock) std::fill_n(b.across, dim * kBlock, 0.0f);
  transpose_small({b.rows, static_cast<int64_t>(step), b.across, kBlock}, queries, dim);
}

// lse and delta = <dy, y> of the block. A query that saw no key gets lse = +inf: its probabilities are 0.
void load_statistics(const AttentionGrad& a, const BlockAt& at, Scratch& s) {
  const Attention& g = a.forward;
  const float* lse = a.log_sum_exp + (at.batch * g.heads + at.head) * g.queries + at.query;
  const int64_t row = g.heads * g.value_dim;
  const float* y = a.y + (at.batch * g.queries + at.query) * row + at.head * g.value_dim;
  const size_t step = padded(g.value_dim);
  std::fill_n(s.lse, kBlock, std::numeric_limits<float>::infinity());
  std::fill_n(s.delta, kBlock, 0.0f);
  for (size_t i = 0; i < at.queries; ++i) {
    if (lse[i] > kLowest) s.lse[i] = lse[i];
    float sum[4] = {};
    const float *yi = y + static_cast<int64_t>(i) * row, *di = s.dy + i * step;
    for (int64_t j = 0; j < g.value_dim; ++j) sum[j % 4] += yi[j] * di[j];
    s.delta[i] = (sum[0] + sum[1]) + (sum[2] + sum[3]);
  }
}

// scores -> p = exp(s - lse), ds = p (dp - delta).
template <size_t kV>
HWY_NOINLINE void probabilities(size_t n, Scratch& s) {
  for (size_t v = 0; v < kV; ++v) {
    const VF lse = hn::Load(kF, s.lse + v * kLanes), delta = hn::Load(kF, s.delta + v * kLanes);
    for (size_t k = 0; k < n; ++k) {
      float *score = s.scores + k * kBlock + v * kLanes, *d = s.ds + k * kBlock + v * kLanes;
      const VF p = exp_nonpositive(hn::Sub(hn::Load(kF, score), lse));
      hn::Store(p, kF, score);
      hn::Store(hn::Mul(p, hn::Sub(hn::Load(kF, d), delta)), kF, d);
    }
  }
}

// Scores [n, kBlock] -> cap tanh(score / cap), and the derivative of that.
template <size_t kV>
HWY_NOINLINE void cap_scores(float softcap, size_t n, Scratch& s) {
  const VF cap = set(softcap), inverse = set(1.0f / softcap);
  for (size_t k = 0; k < n; ++k) {
    for (size_t v = 0; v < kV; ++v) {
      float *p = s.scores + k * kBlock + v * kLanes, *slope = s.slope + k * kBlock + v * kLanes;
      const VF t = tanh_v(hn::Mul(hn::Load(kF, p), inverse));
      hn::Store(hn::Mul(cap, t), kF, p);
      hn::Store(hn::NegMulAdd(t, t, set(1.0f)), kF, slope);
    }
  }
}

// ds of capped scores.
template <size_t kV>
HWY_NOINLINE void apply_slope(size_t n, Scratch& s) {
  for (size_t k = 0; k < n; ++k) {
    for (size_t v = 0; v < kV; ++v) {
      const size_t at = k * kBlock + v * kLanes;
      hn::Store(hn::Mul(hn::Load(kF, s.ds + at), hn::Load(kF, s.slope + at)), kF, s.ds + at);
    }
  }
}

// c [keys, step] += t [keys, kBlock] rows [queries, step], channels in the lanes.
struct KeyProduct {
  const float *t, *rows;
  float* c;
  size_t step;
};

HWY_NOINLINE void add_to_keys(const KeyProduct& k, size_t keys, size_t queries) {
  for (size_t j = 0; j < k.step;) {
    const Product p = {k.t, static_cast<int64_t>(kBlock), 1, k.rows + j, k.c + j, queries, k.step, k.step};
    const size_t vectors = std::min((k.step - j) / kLanes, kQ);
    switch (vectors) {
      case 1: product<1, true>(p, keys); break;
      case 2: product<2, true>(p, keys); break;
#if HWY_TARGET != HWY_AVX2
      case 3: product<3, true>(p, keys); break;
      default: product<4, true>(p, keys); break;
#endif
    }
    j += vectors * kLanes;
  }
}

// One block of queries against all keys it sees.
template <size_t kV>
void run_block(const AttentionGrad& a, const BlockAt& at, const KeySums& sums, Scratch& s) {
  const Attention& g = a.forward;
  const int64_t kv_head = at.head / (g.heads / g.kv_heads);
  const float* q =
      g.q.data + at.batch * g.q.stride_batch + at.query * g.q.stride_seq + at.head * g.q.stride_head;
  const float* k = g.k.data + at.batch * g.k.stride_batch + kv_head * g.k.stride_head;
  const float* v = g.v.data + at.batch * g.v.stride_batch + kv_head * g.v.stride_head;
  const int64_t row = g.heads * g.value_dim;
  const float* dy = a.dy + (at.batch * g.queries + at.query) * row + at.head * g.value_dim;
  const size_t dim = static_cast<size_t>(g.head_dim), value_dim = static_cast<size_t>(g.value_dim);
  load_rows({q, g.q.stride_seq, g.head_dim, s.q, s.q_across}, at.queries, g.scale);
  load_rows({dy, row, g.value_dim, s.dy, s.dy_across}, at.queries, 1.0f);
  load_statistics(a, at, s);
  std::fill_n(s.dq, dim * kBlock, 0.0f);
  const int64_t last_query = at.query + static_cast<int64_t>(at.queries) - 1;
  const int64_t keys = g.causal ? std::clamp<int64_t>(last_query + g.causal_offset + 1, 0, g.keys) : g.keys;
  for (int64_t first = first_key(g, at); first < keys; first += static_cast<int64_t>(kKeys)) {
    const size_t n = static_cast<size_t>(std::min<int64_t>(static_cast<int64_t>(kKeys), keys - first));
    const float *kf = k + first * g.k.stride_seq, *vf = v + first * g.v.stride_seq;
    product<kV, false>({kf, g.k.stride_seq, 1, s.q_across, s.scores, dim}, n);
    product<kV, false>({vf, g.v.stride_seq, 1, s.dy_across, s.ds, value_dim}, n);
    if (g.softcap > 0) cap_scores<kV>(g.softcap, n, s);
    if (g.mask.data != nullptr) add_mask<kV>(g, at, first, n, s.scores);
    if (g.causal && first + static_cast<int64_t>(n) > at.query + g.causal_offset + 1)
      apply_causal(g, at, first, n, s.scores);
    if (g.left >= 0 && first < last_query + g.causal_offset - g.left) apply_window(g, at, first, n, s.scores);
    probabilities<kV>(n, s);
    if (g.softcap > 0) apply_slope<kV>(n, s);
    product<kV, true>({kf, 1, g.k.stride_seq, s.ds, s.dq, n}, dim);
    float *dk = sums.dk + static_cast<size_t>(first) * sums.dk_step,
          *dv = sums.dv + static_cast<size_t>(first) * sums.dv_step;
    add_to_keys({s.ds, s.q, dk, sums.dk_step}, n, at.queries);
    add_to_keys({s.scores, s.dy, dv, sums.dv_step}, n, at.queries);
  }
  // scale was taken into q, not into ds: dq lacks it.
  for (size_t i = 0; i < dim * kBlock; ++i) s.dq[i] *= g.scale;
  float* dq =
      a.dq.data + at.batch * a.dq.stride_batch + at.query * a.dq.stride_seq + at.head * a.dq.stride_head;
  transpose_small({s.dq, static_cast<int64_t>(kBlock), dq, static_cast<size_t>(a.dq.stride_seq)}, dim,
                  at.queries);
}

// Sums [rows, step] of one head.
struct HeadSums {
  const float* from;
  size_t step;
  int64_t channels;
};

void store_keys(const AttentionResult& to, const HeadSums& sums, int64_t keys, int64_t batch, int64_t head) {
  float* out = to.data + batch * to.stride_batch + head * to.stride_head;
  for (int64_t j = 0; j < keys; ++j) {
    std::copy_n(sums.from + static_cast<size_t>(j) * sums.step, sums.channels, out + j * to.stride_seq);
  }
}

int64_t sums_floats(const Attention& g) {
  return g.keys * static_cast<int64_t>(padded(g.head_dim) + padded(g.value_dim));
}

// Task `index` counts over [batch, kv_heads]; `memory` holds sums_floats.
void attention_grad_task(const AttentionGrad& a, float* memory, int64_t index) {
  Scratch s;
  const Attention& g = a.forward;
  const int64_t batch = index / g.kv_heads, kv_head = index % g.kv_heads, group = g.heads / g.kv_heads;
  KeySums sums{memory, nullptr, padded(g.head_dim), padded(g.value_dim)};
  sums.dv = memory + static_cast<size_t>(g.keys) * sums.dk_step;
  std::fill_n(memory, sums_floats(g), 0.0f);
  for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
    for (int64_t query = 0; query < g.queries; query += static_cast<int64_t>(kBlock)) {
      BlockAt at{batch, head, query, 0};
      at.queries = static_cast<size_t>(std::min<int64_t>(static_cast<int64_t>(kBlock), g.queries - query));
      switch ((at.queries + kLanes - 1) / kLanes) {
        case 1: run_block<1>(a, at, sums, s); break;
        case 2: run_block<2>(a, at, sums, s); break;
#if HWY_TARGET != HWY_AVX2
        case 3: run_block<3>(a, at, sums, s); break;
        default: run_block<4>(a, at, sums, s); break;
#endif
      }
    }
  }
  store_keys(a.dk, {sums.dk, sums.dk_step, g.head_dim}, g.keys, batch, kv_head);
  store_keys(a.dv, {sums.dv, sums.dv_step, g.value_dim}, g.keys, batch, kv_head);
}

}  // namespace
}  // namespace trireme::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace trireme::cpu {

HWY_EXPORT(attention_grad_task);
HWY_EXPORT(sums_floats);

namespace {

int64_t lane_floats(const Attention& g) { return (HWY_DYNAMIC_DISPATCH(sums_floats)(g) + 15) / 16 * 16; }

}  // namespace

size_t attention_grad_workspace_bytes(const Attention& g, int threads) {
  return static_cast<size_t>(lane_floats(g)) * sizeof(float) * static_cast<size_t>(threads) + 64;
}

void attention_grad(const AttentionGrad& args, void* workspace, base::ThreadPool& pool) {
  const Attention& g = args.forward;
  base::require(g.head_dim <= kAttentionMaxDim && g.value_dim <= kAttentionMaxDim,
                "attention supports head dims up to ", kAttentionMaxDim, ", got ", g.head_dim, " and ",
                g.value_dim);
  base::require(g.kv_heads > 0 && g.heads % g.kv_heads == 0,
                "attention needs kv heads that divide heads: ", g.kv_heads, " of ", g.heads);
  float* lanes = reinterpret_cast<float*>((reinterpret_cast<uintptr_t>(workspace) + 63) & ~uintptr_t{63});
  const int64_t tasks = g.batch * g.kv_heads, floats = lane_floats(g);
  const auto task = HWY_DYNAMIC_DISPATCH(attention_grad_task);
  std::atomic<int64_t> next{0};
  pool.run(std::min<int64_t>(tasks, pool.size()), [&](int64_t lane) {
    for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < tasks;)
      task(args, lanes + lane * floats, i);
  });
}

}  // namespace trireme::cpu
#endif
