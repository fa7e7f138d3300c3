// Paged attention: query vectors that share a key head are processed in blocks, keys and values in runs of
// tokens that are contiguous in a page.
#include "backend/cpu/attention/paged_attention.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <new>
#include <type_traits>

#include "backend/cpu/elementwise/cast_types.h"
#include "backend/cpu/simd/simd_targets.h"
#include "backend/cpu/device/round_up.h"
#include "tensor/blocks/coded_rows.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/attention/paged_attention.cc"
#include "hwy/foreach_target.h"
// Must follow foreach_target.h, which sets the SIMD level.
#include "backend/cpu/simd/simd_math.inc"
#include "backend/cpu/simd/simd_reduce.inc"

#ifndef TRIREME_PAGED_JOB
#define TRIREME_PAGED_JOB
namespace trireme::cpu {
/// Query vectors [first, first + count) of one sequence and key head, ordered by row and then by head in the
/// group, with the keys of parts [part, last_part).
struct PagedJob {
  int64_t sequence, kv, first, count, part, last_part;
  float* states;  ///< for one part: [count][stride] states of dim + 2 floats; null: results go to y
  int64_t stride = 0;
};
inline constexpr int64_t kPagedBlock = 32;  // query vectors of a job
}  // namespace trireme::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace trireme::cpu::HWY_NAMESPACE {
namespace {

using tensor::DType;

constexpr size_t kRun = 16;  // most tokens processed together
constexpr size_t kBlock = static_cast<size_t>(kPagedBlock), kPart = static_cast<size_t>(kPagedPart);
constexpr size_t kMaxDim = static_cast<size_t>(kPagedMaxDim);
// A register tile: kTile query vectors by 4 keys, or by kWide vectors of channels.
#if HWY_TARGET == HWY_AVX3
constexpr size_t kTile = 4;
#else
constexpr size_t kTile = 2;
#endif
constexpr size_t kWide = 4;

// Rows are kMaxDim or kPart floats apart in all arrays but `run`, where they are `width` apart: dim rounded
// up to whole vectors. Floats past dim are zero.
struct Scratch {
  HWY_ALIGN float q[kBlock * kMaxDim];
  HWY_ALIGN float scores[kBlock * kPart];
  HWY_ALIGN float part[kBlock * kMaxDim];  // weighted sum of the values of the part
  HWY_ALIGN float y[kBlock * kMaxDim];     // the same over all parts so far
  HWY_ALIGN float run[kRun * kMaxDim];     // keys or values as whole f32 vectors
  float top[kBlock], sum[kBlock], part_top[kBlock], part_sum[kBlock];
  int64_t from[kBlock], limit[kBlock];  // keys [from, limit) are those that a query vector sees
};

size_t width_of(int64_t dim) { return (static_cast<size_t>(dim) + kLanes - 1) / kLanes * kLanes; }

// Converts n elements of `type` to floats.
void widen(const void* from, DType type, float* to, size_t n) {
  if (type == DType::f32) std::memcpy(to, from, n * sizeof(float));
  if (type == DType::bf16) bf16_to_f32(static_cast<const uint16_t*>(from), to, n);
  if (type == DType::f16) f16_to_f32(static_cast<const uint16_t*>(from), to, n);
}

void narrow(const float* from, DType type, void* to, size_t n) {
  if (type == DType::f32) std::memcpy(to, from, n * sizeof(float));
  if (type == DType::bf16) f32_to_bf16(from, static_cast<uint16_t*>(to), n);
  if (type == DType::f16) f32_to_f16(from, static_cast<uint16_t*>(to), n);
}

// Writes a row of codes as floats: codes times the scale that lies behind them.
void widen_codes(const std::byte* row, DType type, float* to, size_t dim) {
  float scale;
  std::memcpy(&scale, row + dim, sizeof scale);
  if (type == DType::i8) {
    const hn::Rebind<int8_t, F32> bytes;
    const hn::Rebind<int32_t, F32> words;
    const auto* codes = reinterpret_cast<const int8_t*>(row);
    const VF by = set(scale);
    int8_t last[kLanes] = {};  // a row need not end with a whole vector
    if (dim % kLanes != 0) std::memcpy(last, codes + dim / kLanes * kLanes, dim % kLanes);
    for (size_t d = 0; d < dim; d += kLanes) {
      const auto code = hn::LoadU(bytes, d + kLanes <= dim ? codes + d : last);
      hn::StoreU(hn::Mul(hn::ConvertTo(kF, hn::PromoteTo(words, code)), by), kF, to + d);
    }
    return;
  }
  // A code of e4m3 shifted to the places of f16 is its value over 2^8, subnormal ones included.
  uint16_t halves[kMaxDim] = {};
  const auto* codes = reinterpret_cast<const uint8_t*>(row);
  for (size_t d = 0; d < dim; ++d)
    halves[d] = static_cast<uint16_t>((codes[d] & 0x80) << 8 | (codes[d] & 0x7f) << 7);
  f16_to_f32(halves, to, dim);
  for (size_t d = 0; d < dim; ++d) to[d] *= 256.0f * scale;
}

int64_t bytes_of(DType type) { return type == DType::f32 ? 4 : 2; }

const std::byte* element(const void* base, DType type, int64_t at) {
  return static_cast<const std::byte*>(base) + at * bytes_of(type);
}

// The keys or values of tokens [token, token + n) of a job, where n <= kRun and all lie in one page.
struct Tokens {
  const void* pages;
  int64_t token;
  size_t n;
};
// These tokens as rows of whole vectors of floats, either in their page or copied to `room`.
struct Run {
  const float* rows;
  size_t step;  // floats between rows
};
Run load_run(const PagedAttention& g, const PagedJob& job, const Tokens& tokens, float* room) {
  const auto [pages, token, n] = tokens;
  const int64_t page = g.table[job.sequence * g.most_pages + token / g.page_tokens];
  const int64_t first = (page * g.kv_heads + job.kv) * g.page_tokens + token % g.page_tokens;
  const size_t dim = static_cast<size_t>(g.dim), width = width_of(g.dim);
  const std::byte* from = static_cast<const std::byte*>(pages) + first * g.row_bytes;
  const bool has_codes = tensor::holds_codes(g.page_type);
  if (g.page_type == DType::f32 && dim == width) return {reinterpret_cast<const float*>(from), dim};
  if (dim == width && !has_codes) {
    widen(from, g.page_type, room, n * dim);
    return {room, width};
  }
  for (size_t t = 0; t < n; ++t) {
    const std::byte* row = from + static_cast<int64_t>(t) * g.row_bytes;
    if (has_codes) {
      widen_codes(row, g.page_type, room + t * width, dim);
    } else {
      widen(row, g.page_type, room + t * width, dim);
    }
    std::fill(room + t * width + dim, room + (t + 1) * width, 0.0f);
  }
  return {room, width};
}

#if HWY_TARGET == HWY_SCALAR
HWY_INLINE void store_sums(const VF (&v)[4], float scale, float* to, size_t n) {
  for (size_t i = 0; i < n; ++i) to[i] = hn::GetLane(v[i]) * scale;
}
#else
// Stores to[i] = scale * sum of the lanes of v[i]; one tree of additions computes four sums.
HWY_INLINE void store_sums(const VF (&v)[4], float scale, float* to, size_t n) {
  const hn::Repartition<uint64_t, F32> pairs;
  const VF ab = hn::Add(hn::InterleaveLower(kF, v[0], v[1]), hn::InterleaveUpper(kF, v[0], v[1]));
  const VF cd = hn::Add(hn::InterleaveLower(kF, v[2], v[3]), hn::InterleaveUpper(kF, v[2], v[3]));
  const auto x = hn::BitCast(pairs, ab), y = hn::BitCast(pairs, cd);
  const VF all = hn::Add(hn::BitCast(kF, hn::InterleaveLower(pairs, x, y)),
                         hn::BitCast(kF, hn::InterleaveUpper(pairs, x, y)));
  const hn::FixedTag<float, 4> four;
#if HWY_TARGET == HWY_AVX3
  const hn::Half<F32> half;
  const auto h = hn::Add(hn::LowerHalf(half, all), hn::UpperHalf(half, all));
  const auto q = hn::Add(hn::LowerHalf(four, h), hn::UpperHalf(four, h));
#elif HWY_TARGET == HWY_AVX2
  const auto q = hn::Add(hn::LowerHalf(four, all), hn::UpperHalf(four, all));
#else
  const auto q = all;
#endif
  const auto scaled = hn::Mul(q, hn::Set(four, scale));
  if (n == 4) return hn::StoreU(scaled, four, to);
  HWY_ALIGN float lanes[4];
  hn::Store(scaled, four, lanes);
  for (size_t i = 0; i < n; ++i) to[i] = lanes[i];
}
#endif

// At most 4 keys, and the scale of their scores.
struct Keys {
  Run run;
  size_t n, width;
  float scale;
};

// Computes the scores of kRows query vectors with the keys.
template <size_t kRows>
HWY_INLINE void score_tile(const float* q, const Keys& keys, float* to) {
  VF acc[kRows][4];
  for (size_t r = 0; r < kRows; ++r) {
    for (size_t t = 0; t < 4; ++t) acc[r][t] = hn::Zero(kF);
  }
  const float* row[4];
  for (size_t t = 0; t < 4; ++t) row[t] = keys.run.rows + (t < keys.n ? t : 0) * keys.run.step;
  for (size_t d = 0; d < keys.width; d += kLanes) {
    VF key[4];
    for (size_t t = 0; t < 4; ++t) key[t] = hn::LoadU(kF, row[t] + d);
    for (size_t r = 0; r < kRows; ++r) {
      const VF query = hn::Load(kF, q + r * kMaxDim + d);
      for (size_t t = 0; t < 4; ++t) acc[r][t] = hn::MulAdd(query, key[t], acc[r][t]);
    }
  }
  for (size_t r = 0; r < kRows; ++r) store_sums(acc[r], keys.scale, to + r * kPart, keys.n);
}

// y (+)= p v for kRows query vectors, kV vectors of channels, n tokens.
template <size_t kRows, size_t kV>
HWY_INLINE void value_tile(const float* p, const Run& values, size_t n, float* y) {
  VF acc[kRows][kV];
  for (size_t r = 0; r < kRows; ++r) {
    for (size_t v = 0; v < kV; ++v) acc[r][v] = hn::Load(kF, y + r * kMaxDim + v * kLanes);
  }
  const float* row = values.rows;
  for (size_t t = 0; t < n; ++t, row += values.step) {
    VF value[kV];
    for (size_t v = 0; v < kV; ++v) value[v] = hn::LoadU(kF, row + v * kLanes);
    for (size_t r = 0; r < kRows; ++r) {
      const VF weight = set(p[r * kPart + t]);
      for (size_t v = 0; v < kV; ++v) acc[r][v] = hn::MulAdd(weight, value[v], acc[r][v]);
    }
  }
  for (size_t r = 0; r < kRows; ++r) {
    for (size_t v = 0; v < kV; ++v) hn::Store(acc[r][v], kF, y + r * kMaxDim + v * kLanes);
  }
}

template <size_t kRows>
HWY_INLINE void value_rows(const float* p, const Run& values, size_t n, size_t width, float* y) {
  size_t d = 0;
  for (; d + kWide * kLanes <= width; d += kWide * kLanes)
    value_tile<kRows, kWide>(p, {values.rows + d, values.step}, n, y + d);
  for (; d < width; d += kLanes) value_tile<kRows, 1>(p, {values.rows + d, values.step}, n, y + d);
}

// Calls f(size constant, first) over [0, count) in tiles of kTile, then one by one.
template <class F>
HWY_INLINE void for_tiles(size_t count, const F& f) {
  size_t i = 0;
  for (; i + kTile <= count; i += kTile) f(std::integral_constant<size_t, kTile>(), i);
  for (; i < count; ++i) f(std::integral_constant<size_t, 1>(), i);
}

// Calls f(token, n) over [begin, end) in runs of at most kRun tokens that lie in one page.
template <class F>
HWY_INLINE void for_runs(const PagedAttention& g, int64_t begin, int64_t end, const F& f) {
  for (int64_t token = begin; token < end;) {
    const int64_t page_end = (token / g.page_tokens + 1) * g.page_tokens;
    const int64_t next = std::min({end, page_end, token + static_cast<int64_t>(kRun)});
    f(token, static_cast<size_t>(next - token));
    token = next;
  }
}

// Replaces scores by cap tanh(score / cap).
void cap_scores(float softcap, float* p, size_t n) {
  const VF cap = set(softcap), inverse = set(1.0f / softcap);
  for (size_t at = 0; at < n; at += kLanes)  // rows of scores are whole vectors
    hn::Store(hn::Mul(cap, tanh_v(hn::Mul(hn::Load(kF, p + at), inverse))), kF, p + at);
}

// Replaces scores by exponentials, and finds the maximum and the sum; keys that the query does not see give
// 0.
void soften(Scratch& s, size_t i, int64_t begin, size_t filled) {
  float* p = s.scores + i * kPart;
  const int64_t last = std::clamp<int64_t>(s.limit[i] - begin, 0, kPagedPart);
  const int64_t first = std::clamp<int64_t>(s.from[i] - begin, 0, last);
  const auto n = static_cast<size_t>(first < last ? last : 0);
  const float none = -std::numeric_limits<float>::infinity();
  std::fill_n(p, first, none);
  const float top = reduce_run(p, n, none, Same(), MaxFold());
  const VF most = set(top);
  s.part_top[i] = top;
  s.part_sum[i] = reduce_run(
      p, n, 0.0f,
      [=](VF v, size_t at) HWY_ATTR {
        const VF e = exp_nonpositive(hn::Sub(v, most));
        if (HWY_LIKELY(at + kLanes <= n))
          hn::StoreU(e, kF, p + at);
        else
          store_n(e, p + at, n - at);
        return e;
      },
      AddFold());
  for (size_t t = n; t < filled; ++t) p[t] = 0.0f;
}

float exp_one(float x) { return hn::GetLane(exp_nonpositive(set(x))); }

// Online softmax state of a query vector: largest score, sum of exponentials, weighted sum of values.
struct State {
  float *top, *sum, *y;
};

// Merges the state of later keys into that of earlier ones.
void join(const State& state, const State& later, size_t width) {
  if (*later.top == -std::numeric_limits<float>::infinity()) return;
  const float most = std::max(*state.top, *later.top);
  const VF a = set(exp_one(*state.top - most)), b = set(exp_one(*later.top - most));
  for (size_t d = 0; d < width; d += kLanes) {
    const VF added = hn::Mul(hn::LoadU(kF, later.y + d), b);
    hn::StoreU(hn::MulAdd(hn::LoadU(kF, state.y + d), a, added), kF, state.y + d);
  }
  *state.sum = hn::GetLane(hn::MulAdd(set(*state.sum), a, hn::Mul(set(*later.sum), b)));
  *state.top = most;
}

// Offset of query vector i of a job in q and y.
int64_t vector_at(const PagedAttention& g, const PagedJob& job, int64_t i) {
  const int64_t group = g.heads / g.kv_heads, at = job.first + i;
  const int64_t row = g.starts[job.sequence] + at / group;
  return (row * g.heads + job.kv * group + at % group) * g.dim;
}

void load_queries(const PagedAttention& g, const PagedJob& job, Scratch& s) {
  const size_t dim = static_cast<size_t>(g.dim), width = width_of(g.dim);
  const int64_t group = g.heads / g.kv_heads;
  const int64_t fresh = g.starts[job.sequence + 1] - g.starts[job.sequence];
  for (int64_t i = 0; i < job.count; ++i) {
    const auto n = static_cast<size_t>(i);
    float* to = s.q + n * kMaxDim;
    widen(element(g.q, g.type, vector_at(g, job, i)), g.type, to, dim);
    std::fill(to + dim, to + width, 0.0f);
    s.limit[n] = g.lengths[job.sequence] - fresh + (job.first + i) / group + 1;
    s.from[n] = g.window > 0 ? std::max<int64_t>(0, s.limit[n] - g.window) : 0;
    s.top[n] = -std::numeric_limits<float>::infinity();
    s.sum[n] = 0;
    std::fill_n(s.y + n * kMaxDim, width, 0.0f);
  }
}

// Keys [begin, end) of one part; no query vector of the job sees those before `from`.
struct PartKeys {
  int64_t begin, from, end;
};

// Processes one part of the keys: scores, their exponentials, and the weighted sum of values.
void attend_part(const PagedAttention& g, const PagedJob& job, const PartKeys& part, Scratch& s) {
  const int64_t begin = part.begin, end = part.end;
  const size_t width = width_of(g.dim), count = static_cast<size_t>(job.count);
  for_runs(g, part.from, end, [&](int64_t token, size_t n) HWY_ATTR {
    const Run keys = load_run(g, job, {g.keys, token, n}, s.run);
    float* to = s.scores + (token - begin);
    for (size_t t = 0; t < n; t += 4) {
      const Run run{keys.rows + t * keys.step, keys.step};
      const Keys four{run, std::min<size_t>(4, n - t), width, g.scale};
      for_tiles(count, [&](auto rows, size_t i)
                           HWY_ATTR { score_tile<rows.value>(s.q + i * kMaxDim, four, to + i * kPart + t); });
    }
  });
  for (size_t i = 0; i < count; ++i) {
    if (g.softcap > 0) cap_scores(g.softcap, s.scores + i * kPart, static_cast<size_t>(end - begin));
    soften(s, i, begin, static_cast<size_t>(end - begin));
    std::fill_n(s.part + i * kMaxDim, width, 0.0f);
  }
  for_runs(g, part.from, end, [&](int64_t token, size_t n) HWY_ATTR {
    const Run values = load_run(g, job, {g.values, token, n}, s.run);
    const float* p = s.scores + (token - begin);
    for_tiles(count, [&](auto rows, size_t i) HWY_ATTR {
      value_rows<rows.value>(p + i * kPart, values, n, width, s.part + i * kMaxDim);
    });
  });
}

// The exponential of the attention sink of a query vector, relative to the largest score of its keys.
float sink_of(const PagedAttention& g, const PagedJob& job, int64_t i, float top) {
  if (g.sinks == nullptr) return 0;
  const int64_t group = g.heads / g.kv_heads;
  return std::exp(g.sinks[job.kv * group + (job.first + i) % group] - top);
}

void store_vector(const PagedAttention& g, const PagedJob& job, int64_t i, float* y, const State& all) {
  const float sum = *all.sum > 0 ? *all.sum + sink_of(g, job, i, *all.top) : 0;
  const float inverse = sum > 0 ? 1.0f / sum : 0.0f;
  const size_t dim = static_cast<size_t>(g.dim);
  for (size_t d = 0; d < dim; ++d) y[d] *= inverse;
  const std::byte* to = element(g.y, g.type, vector_at(g, job, i));
  narrow(y, g.type, const_cast<std::byte*>(to), dim);
}

// Writes empty states for a part that no query vector of the job sees.
void leave_part(const PagedJob& job, size_t dim) {
  if (job.states == nullptr) return;
  for (int64_t i = 0; i < job.count; ++i) {
    float* state = job.states + i * job.stride;
    std::fill_n(state, dim, 0.0f);
    state[dim] = -std::numeric_limits<float>::infinity();
    state[dim + 1] = 0;
  }
}

void attend_job(const PagedAttention& g, const PagedJob& job) {
  Scratch s;
  load_queries(g, job, s);
  const size_t width = width_of(g.dim), dim = static_cast<size_t>(g.dim);
  const int64_t seen = s.limit[job.count - 1], left = s.from[0];  // later rows see later keys
  for (int64_t part = job.part; part < job.last_part && part * kPagedPart < seen; ++part) {
    const int64_t begin = part * kPagedPart;
    if (begin + kPagedPart <= left) {
      leave_part(job, dim);
      continue;
    }
    attend_part(g, job, {begin, std::max(begin, left), std::min(seen, begin + kPagedPart)}, s);
    for (size_t i = 0; i < static_cast<size_t>(job.count); ++i) {
      float* y = s.part + i * kMaxDim;
      if (job.states == nullptr) {
        join({s.top + i, s.sum + i, s.y + i * kMaxDim}, {s.part_top + i, s.part_sum + i, y}, width);
        continue;
      }
      float* state = job.states + static_cast<int64_t>(i) * job.stride;
      std::memcpy(state, y, dim * sizeof(float));
      state[dim] = s.part_top[i];
      state[dim + 1] = s.part_sum[i];
    }
  }
  if (job.states != nullptr) return;
  for (int64_t i = 0; i < job.count; ++i)
    store_vector(g, job, i, s.y + static_cast<size_t>(i) * kMaxDim, {s.top + i, s.sum + i, nullptr});
}

// Computes y of one query vector from the states of its parts.
void join_states(const PagedAttention& g, const PagedJob& job) {
  HWY_ALIGN float y[kMaxDim], later[kMaxDim];
  const size_t dim = static_cast<size_t>(g.dim), width = width_of(g.dim);
  std::fill_n(y, width, 0.0f);
  std::fill_n(later, width, 0.0f);
  float top = -std::numeric_limits<float>::infinity(), sum = 0;
  for (int64_t part = job.part; part < job.last_part; ++part) {
    float* state = job.states + part * (g.dim + 2);
    std::memcpy(later, state, dim * sizeof(float));
    join({&top, &sum, y}, {state + dim, state + dim + 1, later}, width);
  }
  store_vector(g, job, 0, y, {&top, &sum, y});
}

}  // namespace
}  // namespace trireme::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace trireme::cpu {

HWY_EXPORT(attend_job);
HWY_EXPORT(join_states);

namespace {

/// Only so many query vectors share their parts among threads; more of them occupy all threads anyway.
constexpr int64_t kMostSplit = 512;

int64_t most_parts(const PagedAttention& g) {
  return (g.most_pages * g.page_tokens + kPagedPart - 1) / kPagedPart;
}

/// Number of query vectors that have a state for each part of their keys.
int64_t state_vectors(const PagedAttention& g) { return std::min(kMostSplit, g.rows * g.heads); }

}  // namespace

struct PagedLoop::Job : PagedJob {
  int64_t first_vector = 0;  // index of the block's first vector among those of all sequences
};

PagedLoop::PagedLoop(const PagedAttention& args, int threads) : g_(args), group_(args.heads / args.kv_heads) {
  first_ = static_cast<int64_t*>(g_.workspace);
  first_vector_ = first_ + g_.sequences + 1;
  auto* parts_left = static_cast<std::byte*>(g_.workspace) + align64(2 * (g_.sequences + 1) * 8);
  parts_left_ = reinterpret_cast<Pending*>(parts_left);
  states_ = reinterpret_cast<float*>(parts_left +
                                     align64(state_vectors(g_) * static_cast<int64_t>(sizeof(Pending))));
  layout(false);
  const int64_t vectors = first_vector_[g_.sequences];
  if (tasks() < 4 * threads && vectors <= kMostSplit && threads > 1) layout(true);
}

void PagedLoop::layout(bool is_split) {
  is_split_ = is_split;
  first_[0] = first_vector_[0] = 0;
  for (int64_t s = 0; s < g_.sequences; ++s) {
    first_[s + 1] = first_[s] + blocks_of(s) * g_.kv_heads * (is_split ? parts_of(s) : 1);
    first_vector_[s + 1] = first_vector_[s] + vectors_of(s) * g_.kv_heads;
    for (int64_t i = 0; is_split && i < blocks_of(s) * g_.kv_heads; ++i) {
      const int64_t first = i / blocks_of(s) * vectors_of(s) + i % blocks_of(s) * kPagedBlock;
      new (parts_left_ + first_vector_[s] + first) Pending();
      parts_left_[first_vector_[s] + first].start(parts_of(s));
    }
  }
}

int64_t PagedLoop::vectors_of(int64_t s) const { return (g_.starts[s + 1] - g_.starts[s]) * group_; }
int64_t PagedLoop::blocks_of(int64_t s) const { return (vectors_of(s) + kPagedBlock - 1) / kPagedBlock; }
int64_t PagedLoop::parts_of(int64_t s) const { return (g_.lengths[s] + kPagedPart - 1) / kPagedPart; }

/// The sequence whose range of tasks contains `task`; sequences without tasks have empty ranges.
int64_t PagedLoop::sequence_of(int64_t task) const {
  return std::upper_bound(first_, first_ + g_.sequences + 1, task) - first_ - 1;
}

PagedLoop::Job PagedLoop::job(int64_t task) const {
  const int64_t s = sequence_of(task);
  const int64_t parts = is_split_ ? parts_of(s) : 1, blocks = blocks_of(s);
  const int64_t at = task - first_[s], part = at % parts, block = at / parts % blocks;
  Job job{{s, at / parts / blocks, block * kPagedBlock, 0, 0, most_parts(g_), nullptr}};
  job.count = std::min(kPagedBlock, vectors_of(s) - job.first);
  if (!is_split_) return job;
  job.part = part;
  job.last_part = part + 1;
  job.stride = most_parts(g_) * (g_.dim + 2);
  job.first_vector = first_vector_[s] + job.kv * vectors_of(s) + job.first;
  job.states = states_ + job.first_vector * job.stride + part * (g_.dim + 2);
  return job;
}

int64_t PagedLoop::kv_head(int64_t task) const { return job(task).kv; }

void PagedLoop::run(int64_t task) const {
  const Job own = job(task);
  HWY_DYNAMIC_DISPATCH(attend_job)(g_, own);
  if (is_split_ && parts_left_[own.first_vector].finish()) join(own);
}

/// Joins the parts of every query vector of a block.
void PagedLoop::join(const Job& block) const {
  const int64_t fresh = g_.starts[block.sequence + 1] - g_.starts[block.sequence];
  for (int64_t i = 0; i < block.count; ++i) {
    const int64_t first = block.first + i;
    const int64_t seen = g_.lengths[block.sequence] - fresh + first / group_ + 1;
    HWY_DYNAMIC_DISPATCH(join_states)
    (g_, {block.sequence, block.kv, first, 1, 0, (seen + kPagedPart - 1) / kPagedPart,
          states_ + (block.first_vector + i) * block.stride});
  }
}

void PagedLoop::clear_rest() const {
  const int64_t used = g_.sequences > 0 ? g_.starts[g_.sequences] : 0,
                row_bytes = g_.heads * g_.dim * (g_.type == tensor::DType::f32 ? 4 : 2);
  if (used < g_.rows)
    std::memset(static_cast<std::byte*>(g_.y) + used * row_bytes, 0,
                static_cast<size_t>((g_.rows - used) * row_bytes));
}

const char* paged_fault(const PagedAttention& g, int64_t* value) {
  int64_t last = 0;
  for (int64_t s = 0; s < g.sequences; ++s) {
    const int64_t begin = g.starts[s], end = g.starts[s + 1], length = g.lengths[s];
    *value = s;
    if (begin != last || end < begin || end > g.rows) return "rows out of order or out of range in sequence";
    if (length < end - begin) return "fewer tokens than new ones in sequence";
    if (length > g.most_pages * g.page_tokens) return "more tokens than its pages hold in sequence";
    last = end;
    if (end == begin) continue;
    for (int64_t i = 0; i * g.page_tokens < length; ++i) {
      const int64_t page = g.table[s * g.most_pages + i];
      if (page < 0 || page >= g.pages) return "page out of range in sequence";
    }
  }
  return nullptr;
}

int64_t paged_attention_workspace_bytes(const PagedAttention& g) {
  const int64_t vectors = state_vectors(g);
  return align64(2 * (g.sequences + 1) * 8) + align64(vectors * static_cast<int64_t>(sizeof(Pending))) +
         vectors * most_parts(g) * (g.dim + 2) * 4;
}

void paged_attention(const PagedAttention& g, base::ThreadPool& pool) {
  const PagedLoop loop(g, pool.size());
  pool.run(loop.tasks(), [&](int64_t task) { loop.run(task); });
  loop.clear_rest();
}

}  // namespace trireme::cpu
#endif
