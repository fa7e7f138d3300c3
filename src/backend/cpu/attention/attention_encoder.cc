// Attention with the online softmax (Milakov & Gimelshein 2018). Lanes are queries: scores, maximum, sum and
// output are vectors over a block of queries, which avoids horizontal reductions. Keys and values are read in
// place, one broadcast float at a time.
#include "backend/cpu/attention/attention_encoder.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "backend/cpu/simd/simd_targets.h"
#include "base/error.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/attention/attention_encoder.cc"
#include "hwy/foreach_target.h"
// Must follow foreach_target.h, which sets the SIMD level.
#include "backend/cpu/simd/simd_math.inc"

HWY_BEFORE_NAMESPACE();
namespace trireme::cpu::HWY_NAMESPACE {
namespace {

#include "backend/cpu/attention/attention_blocks.inc"

constexpr size_t kKeys = 128;  // keys per step of the online softmax

// Position of one block of queries.
struct BlockAt {
  int64_t batch, head, query;
  size_t queries;  // valid queries, at most kBlock
};

// Per-task memory, on the stack: at most 64 queries x (256 + 128 + 256) floats.
struct Scratch {
  alignas(64) float q[kAttentionMaxDim * kBlock];    // [head_dim, kBlock], scaled
  alignas(64) float scores[kKeys * kBlock];          // [keys of the step, kBlock]
  alignas(64) float out[kAttentionMaxDim * kBlock];  // [value_dim, kBlock]
  VF max[kQ], sum[kQ];                               // per query
};

// scratch.q [head_dim, kBlock] = scale * q^T; lanes without a query are 0.
template <size_t kV>
HWY_NOINLINE void load_queries(const Attention& g, const BlockAt& at, Scratch& s) {
  const size_t dim = static_cast<size_t>(g.head_dim);
  const float* q =
      g.q.data + at.batch * g.q.stride_batch + at.query * g.q.stride_seq + at.head * g.q.stride_head;
  if (at.queries < kV * kLanes) {
    for (size_t j = 0; j < dim; ++j) {
      for (size_t v = 0; v < kV; ++v) hn::Store(hn::Zero(kF), kF, s.q + j * kBlock + v * kLanes);
    }
  }
  transpose_small({q, g.q.stride_seq, s.q, kBlock}, at.queries, dim);
  const VF scale = set(g.scale);
  for (size_t j = 0; j < dim; ++j) {
    for (size_t v = 0; v < kV; ++v) {
      float* p = s.q + j * kBlock + v * kLanes;
      hn::Store(hn::Mul(hn::Load(kF, p), scale), kF, p);
    }
  }
}

// The first block of keys that some query of the block sees. Blocks of keys begin at the same keys for every
// block of queries, so that sums do not depend on how queries are divided among tasks.
HWY_INLINE int64_t first_key(const Attention& g, const BlockAt& at) {
  if (g.left < 0) return 0;
  const int64_t step = static_cast<int64_t>(kKeys);
  return std::max<int64_t>(0, at.query + g.causal_offset - g.left) / step * step;
}

// Sets to -inf the scores [n, kBlock] of those keys first .. first + n that lie before a query's window.
void apply_window(const Attention& g, const BlockAt& at, int64_t first, size_t n, float* scores) {
  for (size_t k = 0; k < n; ++k) {
    // Query i sees the key if i + offset - key <= left.
    const int64_t last = first + static_cast<int64_t>(k) + g.left - g.causal_offset - at.query;
    const size_t begin =
        static_cast<size_t>(std::clamp<int64_t>(last + 1, 0, static_cast<int64_t>(at.queries)));
    std::fill(scores + k * kBlock + begin, scores + k * kBlock + at.queries,
              -std::numeric_limits<float>::infinity());
  }
}

// Adds the mask to scores [n, kBlock] of keys first .. first + n.
template <size_t kV>
HWY_NOINLINE void add_mask(const Attention& g, const BlockAt& at, int64_t first, size_t n, float* scores) {
  const AttentionMask& m = g.mask;
  const float* row =
      m.data + at.batch * m.stride_batch + at.head * m.stride_head + at.query * m.stride_query + first;
  if (m.stride_query == 0) {
    for (size_t k = 0; k < n; ++k) {
      const VF add = set(row[k]);
      for (size_t v = 0; v < kV; ++v) {
        float* p = scores + k * kBlock + v * kLanes;
        hn::Store(hn::Add(hn::Load(kF, p), add), kF, p);
      }
    }
    return;
  }
  alignas(64) float across[kKeys * kBlock];  // [keys, kBlock]; lanes without a query are 0
  if (at.queries % kLanes != 0) {
    for (size_t k = 0; k < n; ++k) hn::Store(hn::Zero(kF), kF, across + k * kBlock + (kV - 1) * kLanes);
  }
  transpose_small({row, m.stride_query, across, kBlock}, at.queries, n);
  for (size_t k = 0; k < n; ++k) {
    for (size_t at_lane = k * kBlock; at_lane < k * kBlock + kV * kLanes; at_lane += kLanes)
      hn::Store(hn::Add(hn::Load(kF, scores + at_lane), hn::Load(kF, across + at_lane)), kF,
                scores + at_lane);
  }
}

// Excludes keys > query + offset; only keys after those of the block's first query are affected.
void apply_causal(const Attention& g, const BlockAt& at, int64_t first, size_t n, float* scores) {
  const int64_t seen = at.query + g.causal_offset;  // last key that the block's first query sees
  for (size_t k = 0; k < n; ++k) {
    const int64_t hidden =
        first + static_cast<int64_t>(k) - seen;  // queries with a lower index do not see key k
    const size_t end = static_cast<size_t>(std::clamp<int64_t>(hidden, 0, static_cast<int64_t>(at.queries)));
    std::fill_n(scores + k * kBlock, end, -std::numeric_limits<float>::infinity());
  }
}

// One step of the online softmax over scores [n, kBlock]: updates the maximum, rescales sum and output, and
// replaces scores by exponentials.
template <size_t kV>
HWY_NOINLINE void softmax_step(const Attention& g, size_t n, bool first, Scratch& s) {
  for (size_t v = 0; v < kV; ++v) {
    float* p = s.scores + v * kLanes;
    // Four running maxima and four running sums hide the latency of the operations.
    VF top[4] = {s.max[v], s.max[v], s.max[v], s.max[v]};
    size_t k = 0;
    for (; k + 4 <= n; k += 4) {
      for (size_t t = 0; t < 4; ++t) top[t] = max_or_second(top[t], hn::Load(kF, p + (k + t) * kBlock));
    }
    for (; k < n; ++k) top[0] = max_or_second(top[0], hn::Load(kF, p + k * kBlock));
    const VF max = max_or_second(max_or_second(top[0], top[1]), max_or_second(top[2], top[3]));
    VF part[4] = {hn::Zero(kF), hn::Zero(kF), hn::Zero(kF), hn::Zero(kF)};
    for (k = 0; k + 4 <= n; k += 4) {
      for (size_t t = 0; t < 4; ++t) {
        const VF e = exp_nonpositive(hn::Sub(hn::Load(kF, p + (k + t) * kBlock), max));
        part[t] = hn::Add(part[t], e);
        hn::Store(e, kF, p + (k + t) * kBlock);
      }
    }
    for (; k < n; ++k) {
      const VF e = exp_nonpositive(hn::Sub(hn::Load(kF, p + k * kBlock), max));
      part[0] = hn::Add(part[0], e);
      hn::Store(e, kF, p + k * kBlock);
    }
    const VF sum = hn::Add(hn::Add(part[0], part[1]), hn::Add(part[2], part[3]));
    const VF keep = exp_nonpositive(hn::Sub(s.max[v], max));
    s.sum[v] = first ? sum : hn::MulAdd(s.sum[v], keep, sum);
    s.max[v] = max;
    if (first) continue;
    for (size_t j = 0; j < static_cast<size_t>(g.value_dim); ++j) {
      float* o = s.out + j * kBlock + v * kLanes;
      hn::Store(hn::Mul(hn::Load(kF, o), keep), kF, o);
    }
  }
}

// Stores the log of the sum of exponentials of each query's scores; -inf for a query that saw no key.
void store_log_sum_exp(const Attention& g, const BlockAt& at, const Scratch& s) {
  alignas(64) float max[kBlock], sum[kBlock];
  for (size_t v = 0; v * kLanes < at.queries; ++v) {
    hn::Store(s.max[v], kF, max + v * kLanes);
    hn::Store(s.sum[v], kF, sum + v * kLanes);
  }
  float* to = g.log_sum_exp + (at.batch * g.heads + at.head) * g.queries + at.query;
  for (size_t i = 0; i < at.queries; ++i) {
    to[i] = sum[i] == 0 ? -std::numeric_limits<float>::infinity() : max[i] + std::log(sum[i]);
  }
}

// Stores out^T / sum; a query that saw no key gives 0.
template <size_t kV>
HWY_NOINLINE void store_output(const Attention& g, const BlockAt& at, Scratch& s) {
  const size_t dim = static_cast<size_t>(g.value_dim);
  for (size_t v = 0; v < kV; ++v) {
    const VF sum = s.sum[v];
    const VF inverse = hn::IfThenZeroElse(hn::Eq(sum, hn::Zero(kF)), hn::Div(set(1.0f), sum));
    for (size_t j = 0; j < dim; ++j) {
      float* o = s.out + j * kBlock + v * kLanes;
      hn::Store(hn::Mul(hn::Load(kF, o), inverse), kF, o);
    }
  }
  float* out = g.out + ((at.batch * g.queries + at.query) * g.heads + at.head) * g.value_dim;
  transpose_small({s.out, static_cast<int64_t>(kBlock), out, static_cast<size_t>(g.heads * g.value_dim)}, dim,
                  at.queries);
}

// Scores [n, kBlock] -> cap tanh(score / cap).
template <size_t kV>
HWY_NOINLINE void cap_scores(float softcap, size_t n, float* scores) {
  const VF cap = set(softcap), inverse = set(1.0f / softcap);
  for (size_t k = 0; k < n; ++k) {
    for (size_t v = 0; v < kV; ++v) {
      float* p = scores + k * kBlock + v * kLanes;
      hn::Store(hn::Mul(cap, tanh_v(hn::Mul(hn::Load(kF, p), inverse))), kF, p);
    }
  }
}

template <size_t kV>
void run_block(const Attention& g, const BlockAt& at, Scratch& s) {
  load_queries<kV>(g, at, s);
  for (size_t v = 0; v < kV; ++v) s.max[v] = set(kLowest), s.sum[v] = hn::Zero(kF);
  const int64_t kv_head = at.head / (g.heads / g.kv_heads);
  const float* k = g.k.data + at.batch * g.k.stride_batch + kv_head * g.k.stride_head;
  const float* v = g.v.data + at.batch * g.v.stride_batch + kv_head * g.v.stride_head;
  const int64_t last_query = at.query + static_cast<int64_t>(at.queries) - 1;
  const int64_t keys = g.causal ? std::clamp<int64_t>(last_query + g.causal_offset + 1, 0, g.keys) : g.keys;
  const int64_t start = first_key(g, at);
  for (int64_t first = start; first < keys; first += static_cast<int64_t>(kKeys)) {
    const size_t n = static_cast<size_t>(std::min<int64_t>(static_cast<int64_t>(kKeys), keys - first));
    product<kV, false>(
        {k + first * g.k.stride_seq, g.k.stride_seq, 1, s.q, s.scores, static_cast<size_t>(g.head_dim)}, n);
    if (g.softcap > 0) cap_scores<kV>(g.softcap, n, s.scores);
    if (g.mask.data != nullptr) add_mask<kV>(g, at, first, n, s.scores);
    if (g.causal && first + static_cast<int64_t>(n) > at.query + g.causal_offset + 1)
      apply_causal(g, at, first, n, s.scores);
    if (g.left >= 0 && first < last_query + g.causal_offset - g.left) apply_window(g, at, first, n, s.scores);
    softmax_step<kV>(g, n, first == start, s);
    const Product pv = {v + first * g.v.stride_seq, 1, g.v.stride_seq, s.scores, s.out, n};
    if (first == start)
      product<kV, false>(pv, static_cast<size_t>(g.value_dim));
    else
      product<kV, true>(pv, static_cast<size_t>(g.value_dim));
  }
  if (keys <= start) std::fill_n(s.out, static_cast<size_t>(g.value_dim) * kBlock, 0.0f);
  if (g.log_sum_exp != nullptr) store_log_sum_exp(g, at, s);
  store_output<kV>(g, at, s);
}

int64_t block_queries() { return static_cast<int64_t>(kBlock); }

// Task `index` counts over [batch, heads, blocks of `size` queries], size at most kBlock.
void attention_task(const Attention& g, int64_t size, int64_t index) {
  Scratch s;
  const int64_t blocks = (g.queries + size - 1) / size;
  BlockAt at{index / blocks / g.heads, index / blocks % g.heads, index % blocks * size, 0};
  at.queries = static_cast<size_t>(std::min(size, g.queries - at.query));
  switch ((at.queries + kLanes - 1) / kLanes) {
    case 1: return run_block<1>(g, at, s);
    case 2: return run_block<2>(g, at, s);
#if HWY_TARGET != HWY_AVX2
    case 3: return run_block<3>(g, at, s);
    default: return run_block<4>(g, at, s);
#endif
  }
}

}  // namespace
}  // namespace trireme::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace trireme::cpu {

HWY_EXPORT(attention_task);
HWY_EXPORT(block_queries);

void attention(const Attention& args, base::ThreadPool& pool) {
  base::require(args.head_dim <= kAttentionMaxDim && args.value_dim <= kAttentionMaxDim,
                "attention supports head dims up to ", kAttentionMaxDim, ", got ", args.head_dim, " and ",
                args.value_dim);
  base::require(args.kv_heads > 0 && args.heads % args.kv_heads == 0,
                "attention needs kv heads that divide heads: ", args.kv_heads, " of ", args.heads);
  // With few heads, blocks shrink until every thread has one. Each query has a lane of its own, so results do
  // not depend on the size of its block.
  const int64_t largest = HWY_DYNAMIC_DISPATCH(block_queries)();
  const int64_t step = std::min<int64_t>(16, largest);
  const int64_t heads = std::max<int64_t>(1, args.batch * args.heads);
  const int64_t wanted = (pool.size() + heads - 1) / heads;
  const int64_t share = (args.queries + wanted - 1) / wanted;
  const int64_t size = std::clamp((share + step - 1) / step * step, step, largest);
  const auto task = HWY_DYNAMIC_DISPATCH(attention_task);
  const int64_t tasks = args.batch * args.heads * ((args.queries + size - 1) / size);
  pool.run(tasks, [&](int64_t i) { task(args, size, i); });
}

}  // namespace trireme::cpu
#endif
