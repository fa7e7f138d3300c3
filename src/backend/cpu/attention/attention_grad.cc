// Backward attention kernels. Scores are [queries, keys] with keys in the lanes: masks are added without a
// transpose, and each block of keys is transposed once for all queries. The other products have channels in
// the lanes.
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
// Must follow foreach_target.h, which sets the SIMD level.
#include "backend/cpu/simd/simd_math.inc"

HWY_BEFORE_NAMESPACE();
namespace trireme::cpu::HWY_NAMESPACE {
namespace {

#include "backend/cpu/attention/attention_blocks.inc"

constexpr size_t kQueries = 64;  // queries per step

// Memory of one task, on the stack. Channels of row-major blocks are zero-padded to whole vectors.
struct Scratch {
  alignas(64) float k_across[kAttentionMaxDim * kBlock];  // [head_dim, kBlock] k^T
  alignas(64) float v_across[kAttentionMaxDim * kBlock];  // [value_dim, kBlock] v^T
  alignas(64) float k[kBlock * kAttentionMaxDim];         // [keys, padded head_dim] scale k
  alignas(64) float q[kQueries * kAttentionMaxDim];       // [queries, padded head_dim] scale q
  alignas(64) float dy[kQueries * kAttentionMaxDim];      // [queries, padded value_dim]
  alignas(64) float scores[kQueries * kBlock];            // [queries, kBlock]: s, then p
  alignas(64) float ds[kQueries * kBlock];                // dp, then ds
  alignas(64) float slope[kQueries * kBlock];             // derivative of the capped scores
};

size_t padded(int64_t channels) { return (static_cast<size_t>(channels) + kLanes - 1) / kLanes * kLanes; }

// Sums of one key head in the lane's part of the workspace: dq of the current query head, dk and dv over all
// query heads of the group, and the statistics of each query.
struct Sums {
  float *dq, *dk, *dv;  // [queries, k_step], [keys, k_step], [keys, v_step]
  float *lse, *delta;   // [queries]; delta = <dy, y>
  size_t k_step, v_step;
  Sums(const Attention& g, float* memory)
      : dq(memory),
        dk(dq + static_cast<size_t>(g.queries) * padded(g.head_dim)),
        dv(dk + static_cast<size_t>(g.keys) * padded(g.head_dim)),
        lse(dv + static_cast<size_t>(g.keys) * padded(g.value_dim)),
        delta(lse + g.queries),
        k_step(padded(g.head_dim)),
        v_step(padded(g.value_dim)) {}
};

int64_t sums_floats(const Attention& g) {
  return static_cast<int64_t>(padded(g.head_dim) + 2) * g.queries +
         static_cast<int64_t>(padded(g.head_dim) + padded(g.value_dim)) * g.keys;
}

// Position of a step: `queries` rows from `query` on of a head, `keys` rows from `key` on of its key head.
struct StepAt {
  int64_t batch, head, kv_head, query, key;
  size_t queries, keys;
};

// Rows of `channels` floats that are `stride` floats apart.
struct Rows {
  const float* from;
  int64_t stride;
  int64_t channels;
};

// Copies rows times a factor; padding channels become 0.
HWY_NOINLINE void load_rows(const Rows& b, size_t rows, float factor, float* to) {
  const size_t dim = static_cast<size_t>(b.channels), whole = dim / kLanes * kLanes;
  const VF times = set(factor);
  for (size_t i = 0; i < rows; ++i) {
    const float* from = b.from + static_cast<int64_t>(i) * b.stride;
    for (size_t j = 0; j < whole; j += kLanes, to += kLanes)
      hn::Store(hn::Mul(hn::LoadU(kF, from + j), times), kF, to);
    if (whole == dim) continue;
    hn::Store(hn::Mul(load_n(from + whole, dim - whole), times), kF, to);
    to += kLanes;
  }
}

// Transposes rows to columns [channels, kBlock]; lanes without a row become 0.
void load_across(const Rows& b, size_t rows, float* to) {
  const size_t dim = static_cast<size_t>(b.channels);
  if (rows % kLanes != 0) {
    for (size_t j = 0; j < dim; ++j) hn::Store(hn::Zero(kF), kF, to + j * kBlock + rows / kLanes * kLanes);
  }
  transpose_small({b.from, b.stride, to, kBlock}, rows, dim);
}

// Loads lse and delta of a head's queries. A query that saw no key gets lse = +inf, so its probabilities are
// 0.
HWY_NOINLINE void load_statistics(const AttentionGrad& a, int64_t batch, int64_t head, const Sums& to) {
  const Attention& g = a.forward;
  const float* lse = a.log_sum_exp + (batch * g.heads + head) * g.queries;
  const int64_t row = g.heads * g.value_dim, first = batch * g.queries * row + head * g.value_dim;
  const size_t dim = static_cast<size_t>(g.value_dim), whole = dim / kLanes * kLanes;
  for (int64_t i = 0; i < g.queries; ++i) {
    const float *y = a.y + first + i * row, *dy = a.dy + first + i * row;
    to.lse[i] = lse[i] > kLowest ? lse[i] : std::numeric_limits<float>::infinity();
    VF sum = hn::Zero(kF);
    for (size_t j = 0; j < whole; j += kLanes)
      sum = hn::MulAdd(hn::LoadU(kF, y + j), hn::LoadU(kF, dy + j), sum);
    if (whole < dim) sum = hn::MulAdd(load_n(y + whole, dim - whole), load_n(dy + whole, dim - whole), sum);
    to.delta[i] = hn::GetLane(hn::SumOfLanes(kF, sum));
  }
}

// Replaces scores [queries, kBlock] by cap tanh(score / cap) and stores the derivative of that.
template <size_t kV>
HWY_NOINLINE void cap_scores(float softcap, size_t queries, Scratch& s) {
  const VF cap = set(softcap), inverse = set(1.0f / softcap);
  for (size_t i = 0; i < queries; ++i) {
    for (size_t v = 0; v < kV; ++v) {
      float *p = s.scores + i * kBlock + v * kLanes, *slope = s.slope + i * kBlock + v * kLanes;
      const VF t = tanh_v(hn::Mul(hn::Load(kF, p), inverse));
      hn::Store(hn::Mul(cap, t), kF, p);
      hn::Store(hn::NegMulAdd(t, t, set(1.0f)), kF, slope);
    }
  }
}

// Adds the mask to scores.
HWY_NOINLINE void add_mask_rows(const Attention& g, const StepAt& at, float* scores) {
  const AttentionMask& m = g.mask;
  const float* from =
      m.data + at.batch * m.stride_batch + at.head * m.stride_head + at.query * m.stride_query + at.key;
  for (size_t i = 0; i < at.queries; ++i, from += m.stride_query, scores += kBlock) {
    size_t j = 0;
    for (; j + kLanes <= at.keys; j += kLanes)
      hn::Store(hn::Add(hn::Load(kF, scores + j), hn::LoadU(kF, from + j)), kF, scores + j);
    if (j == at.keys) continue;
    hn::Store(hn::Add(hn::Load(kF, scores + j), load_n(from + j, at.keys - j)), kF, scores + j);
  }
}

// Sets scores of keys after a query, or before its window, to -inf.
void hide_keys(const Attention& g, const StepAt& at, float* scores) {
  const auto keys = static_cast<int64_t>(at.keys);
  for (size_t i = 0; i < at.queries; ++i, scores += kBlock) {
    const int64_t own = at.query + static_cast<int64_t>(i) + g.causal_offset - at.key;
    const int64_t end = g.causal ? std::clamp<int64_t>(own + 1, 0, keys) : keys;
    const int64_t begin = g.left >= 0 ? std::clamp<int64_t>(own - g.left, 0, keys) : 0;
    std::fill(scores, scores + begin, -std::numeric_limits<float>::infinity());
    std::fill(scores + end, scores + keys, -std::numeric_limits<float>::infinity());
  }
}

// Computes p = exp(s - lse) and ds = p (dp - delta), in place of s and dp.
template <size_t kV>
HWY_NOINLINE void probabilities(const StepAt& step, const Sums& sums, Scratch& s) {
  for (size_t i = 0; i < step.queries; ++i) {
    const VF lse = set(sums.lse[step.query + static_cast<int64_t>(i)]);
    const VF delta = set(sums.delta[step.query + static_cast<int64_t>(i)]);
    for (size_t v = 0; v < kV; ++v) {
      const size_t at = i * kBlock + v * kLanes;
      const VF p = exp_nonpositive(hn::Sub(hn::Load(kF, s.scores + at), lse));
      hn::Store(p, kF, s.scores + at);
      hn::Store(hn::Mul(p, hn::Sub(hn::Load(kF, s.ds + at), delta)), kF, s.ds + at);
    }
  }
}

// Multiplies ds by the derivative of the cap, which gives ds of the scores before the cap.
template <size_t kV>
HWY_NOINLINE void apply_slope(size_t queries, Scratch& s) {
  for (size_t i = 0; i < queries; ++i) {
    for (size_t at = i * kBlock; at < i * kBlock + kV * kLanes; at += kLanes)
      hn::Store(hn::Mul(hn::Load(kF, s.ds + at), hn::Load(kF, s.slope + at)), kF, s.ds + at);
  }
}

void store_scores(const AttentionGrad& a, const StepAt& at, const Scratch& s) {
  const Attention& g = a.forward;
  float* to = a.dscores + ((at.batch * g.heads + at.head) * g.queries + at.query) * g.keys + at.key;
  for (size_t i = 0; i < at.queries; ++i, to += g.keys) std::copy_n(s.ds + i * kBlock, at.keys, to);
}

// c [rows, step] += a b with channels in the lanes; a(r, k) is addressed as in Product, b is [depth, step].
void add_channels(Product p, size_t rows) {
  for (size_t left = p.b_step / kLanes; left > 0;) {
    const size_t vectors = std::min(left, kQ);
    switch (vectors) {
      case 1: product<1, true>(p, rows); break;
      case 2: product<2, true>(p, rows); break;
#if HWY_TARGET != HWY_AVX2
      case 3: product<3, true>(p, rows); break;
      default: product<4, true>(p, rows); break;
#endif
    }
    p.b += vectors * kLanes;
    p.c += vectors * kLanes;
    left -= vectors;
  }
}

// One step: some queries with the block of keys in the scratch memory.
template <size_t kV>
void run_step(const AttentionGrad& a, const StepAt& at, const Sums& sums, Scratch& s) {
  const Attention& g = a.forward;
  const float* q =
      g.q.data + at.batch * g.q.stride_batch + at.query * g.q.stride_seq + at.head * g.q.stride_head;
  const int64_t row = g.heads * g.value_dim;
  const float* dy = a.dy + (at.batch * g.queries + at.query) * row + at.head * g.value_dim;
  load_rows({q, g.q.stride_seq, g.head_dim}, at.queries, g.scale, s.q);
  load_rows({dy, row, g.value_dim}, at.queries, 1.0f, s.dy);
  const auto k_step = static_cast<int64_t>(sums.k_step), v_step = static_cast<int64_t>(sums.v_step);
  product<kV, false>({s.q, k_step, 1, s.k_across, s.scores, static_cast<size_t>(g.head_dim)}, at.queries);
  product<kV, false>({s.dy, v_step, 1, s.v_across, s.ds, static_cast<size_t>(g.value_dim)}, at.queries);
  if (g.softcap > 0) cap_scores<kV>(g.softcap, at.queries, s);
  if (g.mask.data != nullptr) add_mask_rows(g, at, s.scores);
  if (g.causal || g.left >= 0) hide_keys(g, at, s.scores);
  probabilities<kV>(at, sums, s);
  if (a.dscores != nullptr) store_scores(a, at, s);
  if (g.softcap > 0) apply_slope<kV>(at.queries, s);
  const auto across = static_cast<int64_t>(kBlock);
  const size_t query = static_cast<size_t>(at.query), key = static_cast<size_t>(at.key);
  add_channels({s.ds, across, 1, s.k, sums.dq + query * sums.k_step, at.keys, sums.k_step, sums.k_step},
               at.queries);
  add_channels({s.ds, 1, across, s.q, sums.dk + key * sums.k_step, at.queries, sums.k_step, sums.k_step},
               at.keys);
  add_channels({s.scores, 1, across, s.dy, sums.dv + key * sums.v_step, at.queries, sums.v_step, sums.v_step},
               at.keys);
}

// Processes all queries of a head that see some of the keys from at.key on.
template <size_t kV>
void run_keys(const AttentionGrad& a, StepAt at, const Sums& sums, Scratch& s) {
  const Attention& g = a.forward;
  const float* k = g.k.data + at.batch * g.k.stride_batch + at.kv_head * g.k.stride_head;
  const float* v = g.v.data + at.batch * g.v.stride_batch + at.kv_head * g.v.stride_head;
  const Rows kr{k + at.key * g.k.stride_seq, g.k.stride_seq, g.head_dim};
  load_rows(kr, at.keys, g.scale, s.k);
  load_across(kr, at.keys, s.k_across);
  load_across({v + at.key * g.v.stride_seq, g.v.stride_seq, g.value_dim}, at.keys, s.v_across);
  const int64_t step = static_cast<int64_t>(kQueries), last = at.key + static_cast<int64_t>(at.keys) - 1;
  const int64_t begin = g.causal ? std::clamp<int64_t>(at.key - g.causal_offset, 0, g.queries) : 0;
  const int64_t end =
      g.left >= 0 ? std::clamp<int64_t>(last + g.left - g.causal_offset + 1, 0, g.queries) : g.queries;
  for (at.query = begin / step * step; at.query < end; at.query += step) {
    at.queries = static_cast<size_t>(std::min(step, end - at.query));
    run_step<kV>(a, at, sums, s);
  }
}

// Sums [rows, step] of one head.
struct HeadSums {
  const float* from;
  size_t step;
  int64_t channels, rows;
};

void store_sums(const AttentionResult& to, const HeadSums& sums, int64_t batch, int64_t head) {
  float* out = to.data + batch * to.stride_batch + head * to.stride_head;
  for (int64_t j = 0; j < sums.rows; ++j)
    std::copy_n(sums.from + static_cast<size_t>(j) * sums.step, sums.channels, out + j * to.stride_seq);
}

// Task `index` counts over [batch, kv_heads]; `memory` holds sums_floats.
void attention_grad_task(const AttentionGrad& a, float* memory, int64_t index) {
  Scratch s;
  const Attention& g = a.forward;
  const int64_t batch = index / g.kv_heads, kv_head = index % g.kv_heads, group = g.heads / g.kv_heads;
  const Sums sums(g, memory);
  std::fill(sums.dk, sums.lse, 0.0f);
  for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
    std::fill(sums.dq, sums.dk, 0.0f);
    load_statistics(a, batch, head, sums);
    if (a.dscores != nullptr && (g.causal || g.left >= 0))  // no step visits the masked keys
      std::fill_n(a.dscores + (batch * g.heads + head) * g.queries * g.keys, g.queries * g.keys, 0.0f);
    StepAt at{batch, head, kv_head, 0, 0, 0, 0};
    for (; at.key < g.keys; at.key += static_cast<int64_t>(kBlock)) {
      at.keys = static_cast<size_t>(std::min<int64_t>(static_cast<int64_t>(kBlock), g.keys - at.key));
      switch ((at.keys + kLanes - 1) / kLanes) {
        case 1: run_keys<1>(a, at, sums, s); break;
        case 2: run_keys<2>(a, at, sums, s); break;
#if HWY_TARGET != HWY_AVX2
        case 3: run_keys<3>(a, at, sums, s); break;
        default: run_keys<4>(a, at, sums, s); break;
#endif
      }
    }
    store_sums(a.dq, {sums.dq, sums.k_step, g.head_dim, g.queries}, batch, head);
  }
  store_sums(a.dk, {sums.dk, sums.k_step, g.head_dim, g.keys}, batch, kv_head);
  store_sums(a.dv, {sums.dv, sums.v_step, g.value_dim, g.keys}, batch, kv_head);
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
