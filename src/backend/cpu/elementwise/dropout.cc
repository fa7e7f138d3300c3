// Dropout: computes as many blocks of Philox (Salmon et al. 2011) at once as a vector has lanes.
#include "backend/cpu/elementwise/dropout.h"

#include <algorithm>

#include "backend/cpu/simd/simd_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/elementwise/dropout.cc"
#include "hwy/foreach_target.h"
// Must follow foreach_target.h, which sets the SIMD level.
#include "backend/cpu/simd/simd_vector.inc"

HWY_BEFORE_NAMESPACE();
namespace trireme::cpu::HWY_NAMESPACE {
namespace {

using U32 = hn::ScalableTag<uint32_t>;
constexpr U32 kU;
using VU = hn::Vec<U32>;

constexpr size_t kGroup = 64;   // elements
constexpr size_t kBlocks = 16;  // Philox blocks of a group

#if HWY_TARGET == HWY_SCALAR
void draw(uint64_t seed, uint64_t stream, uint64_t block, VU (&words)[4]) {
  const base::PhiloxBlock b = base::philox_block(seed, stream, block);
  for (size_t w = 0; w < 4; ++w) words[w] = hn::Set(kU, b[w]);
}
#else
using U64 = hn::RepartitionToWide<U32>;
constexpr U64 kU64;

// High and low halves of the products a * m of all lanes.
HWY_INLINE VU multiply(VU a, VU m, VU* low) {
  const auto even = hn::MulEven(a, m);
  const auto odd = hn::MulEven(hn::BitCast(kU, hn::ShiftRight<32>(hn::BitCast(kU64, a))), m);
  *low = hn::OddEven(hn::BitCast(kU, hn::ShiftLeft<32>(odd)), hn::BitCast(kU, even));
  return hn::OddEven(hn::BitCast(kU, odd), hn::BitCast(kU, hn::ShiftRight<32>(even)));
}

// The words of blocks [block, block + kLanes); these lie in one group of 16, so the low word never overflows.
HWY_INLINE void draw(uint64_t seed, uint64_t stream, uint64_t block, VU (&words)[4]) {
  VU c0 = hn::Iota(kU, static_cast<uint32_t>(block));
  VU c1 = hn::Set(kU, static_cast<uint32_t>(block >> 32));
  VU c2 = hn::Set(kU, static_cast<uint32_t>(stream)), c3 = hn::Set(kU, static_cast<uint32_t>(stream >> 32));
  uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
  const VU m0 = hn::Set(kU, 0xD2511F53u), m1 = hn::Set(kU, 0xCD9E8D57u);
  for (int round = 0; round < 10; ++round) {
    VU low_a, low_b;
    const VU high_a = multiply(c0, m0, &low_a), high_b = multiply(c2, m1, &low_b);
    c0 = hn::Xor(hn::Xor(high_b, c1), hn::Set(kU, k0));
    c2 = hn::Xor(hn::Xor(high_a, c3), hn::Set(kU, k1));
    c1 = low_b;
    c3 = low_a;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  words[0] = c0, words[1] = c1, words[2] = c2, words[3] = c3;
}
#endif

// One whole group; x and y point at its first element.
HWY_INLINE void drop_group(const Dropout& g, uint64_t group, const float* x, float* y) {
  const VU threshold = hn::Set(kU, dropout_threshold(g.ratio));
  const VF scale = set(static_cast<float>(1 / (1 - g.ratio)));
  for (size_t lane = 0; lane < kBlocks; lane += kLanes) {
    VU words[4];
    draw(g.seed, g.stream, group * kBlocks + lane, words);
    for (size_t w = 0; w < 4; ++w) {
      const size_t at = kBlocks * w + lane;
      const MF dropped = hn::RebindMask(kF, hn::Lt(words[w], threshold));
      hn::StoreU(hn::IfThenZeroElse(dropped, hn::Mul(hn::LoadU(kF, x + at), scale)), kF, y + at);
    }
  }
}

// Groups [begin, end) of the whole batch, restricted to the elements that x holds.
void drop_groups(const Dropout& g, uint64_t begin, uint64_t end) {
  const uint64_t last = g.first + static_cast<uint64_t>(g.n);
  for (uint64_t group = begin; group < end; ++group) {
    const uint64_t from = std::max(group * kGroup, g.first), to = std::min((group + 1) * kGroup, last);
    const float* x = g.x + (from - g.first);
    float* y = g.y + (from - g.first);
    if (HWY_LIKELY(to - from == kGroup)) {
      drop_group(g, group, x, y);
      continue;
    }
    HWY_ALIGN float whole[kGroup] = {};
    float* at = whole + (from - group * kGroup);
    std::copy(x, x + (to - from), at);
    drop_group(g, group, whole, whole);
    std::copy(at, at + (to - from), y);
  }
}

}  // namespace
}  // namespace trireme::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace trireme::cpu {

HWY_EXPORT(drop_groups);

void dropout(const Dropout& args, base::ThreadPool& pool) {
  if (args.n <= 0) return;
  const auto groups = HWY_DYNAMIC_DISPATCH(drop_groups);
  const uint64_t begin = args.first / 64, end = (args.first + static_cast<uint64_t>(args.n) + 63) / 64;
  pool.for_range(static_cast<int64_t>(end - begin), 256, [&](int64_t b, int64_t e) {
    groups(args, begin + static_cast<uint64_t>(b), begin + static_cast<uint64_t>(e));
  });
}

void dropout_runs(const Dropout& args, std::span<const int64_t> starts, int64_t length,
                  base::ThreadPool& pool) {
  if (starts.size() == 1) {
    Dropout run = args;
    run.first += static_cast<uint64_t>(starts[0]);
    return dropout(run, pool);
  }
  if (length <= 0) return;
  const auto groups = HWY_DYNAMIC_DISPATCH(drop_groups);
  const int64_t grain = std::max<int64_t>(1, 16384 / length);
  pool.for_range(static_cast<int64_t>(starts.size()), grain, [&](int64_t b, int64_t e) {
    for (int64_t i = b; i < e; ++i) {
      Dropout run = args;
      run.x += i * length;
      run.y += i * length;
      run.n = length;
      run.first += static_cast<uint64_t>(starts[static_cast<size_t>(i)]);
      groups(run, run.first / 64, (run.first + static_cast<uint64_t>(length) + 63) / 64);
    }
  });
}

}  // namespace trireme::cpu
#endif
