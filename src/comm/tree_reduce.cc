// Reduces up to eight buffers in registers; splits larger trees into halves through a block of accumulators.
#include "comm/tree_reduce.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "base/error.h"
// Builds for a portable baseline, AVX2 and AVX-512: levels between gain nothing if memory is the limit.
#ifndef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4)
#endif
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "comm/tree_reduce.cc"
#include "hwy/foreach_target.h"
// Must come after foreach_target.h, which sets the target.
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace trireme::comm::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using tensor::BFloat16;
using tensor::Half;

constexpr size_t kBlock = 512;   // accumulators of one pass: a page if they have 64 bits
constexpr int kInRegisters = 8;  // sources of one pass

template <class T>
using Acc = std::conditional_t<sizeof(T) == 2, float, T>;
template <class A>
using Tag = hn::ScalableTag<A>;

/// Loads elements as accumulators; 16-bit ones are widened exactly. `p` may have any alignment.
template <class T>
HWY_INLINE hn::Vec<Tag<Acc<T>>> load(const std::byte* p) {
  const Tag<Acc<T>> d;
  if constexpr (std::is_same_v<T, BFloat16>) {
    const hn::Rebind<uint16_t, Tag<float>> half;
    const auto bits = hn::LoadU(half, reinterpret_cast<const uint16_t*>(p));
    return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(hn::ScalableTag<uint32_t>(), bits)));
  } else if constexpr (std::is_same_v<T, Half>) {
    const hn::Rebind<hwy::float16_t, Tag<float>> half;
    return hn::PromoteTo(d, hn::LoadU(half, reinterpret_cast<const hwy::float16_t*>(p)));
  } else {
    return hn::LoadU(d, reinterpret_cast<const T*>(p));
  }
}

struct Sum {
  template <class V>
  HWY_INLINE V operator()(V a, V b) const {
    return hn::Add(a, b);
  }
};
/// The larger value; NaN if either is NaN.
struct Max {
  template <class V>
  HWY_INLINE V operator()(V a, V b) const {
    if constexpr (std::is_floating_point_v<hn::TFromV<V>>) {
      return hn::IfThenElse(hn::Or(hn::Gt(a, b), hn::IsNaN(a)), a, b);
    } else {
      return hn::Max(a, b);
    }
  }
};

/// The tree T(low, count) over the vectors at `offset`.
template <class T, class Op, int kLow, int kCount>
HWY_INLINE hn::Vec<Tag<Acc<T>>> tree_at(const std::byte* const* sources, size_t offset) {
  if constexpr (kCount == 1) {
    return load<T>(sources[kLow] + offset);
  } else {
    constexpr int kLeft = left_share(kCount);
    return Op()(tree_at<T, Op, kLow, kLeft>(sources, offset),
                tree_at<T, Op, kLow + kLeft, kCount - kLeft>(sources, offset));
  }
}

template <class T, class Op, int kCount>
void reduce_fixed(const std::byte* const* sources, size_t at, Acc<T>* out, size_t n) {
  const Tag<Acc<T>> d;
  const size_t width = hn::Lanes(d);
  size_t i = 0;
  for (; i + width <= n; i += width) {
    hn::StoreU(tree_at<T, Op, 0, kCount>(sources, at + i * sizeof(T)), d, out + i);
  }
  if (i == n) return;
  // The tail goes through zero-padded copies, so that nothing is read or written past the buffers.
  T tails[kCount][HWY_LANES(Acc<T>)] = {};
  const std::byte* padded[kCount];
  for (int s = 0; s < kCount; ++s) {
    std::memcpy(tails[s], sources[s] + at + i * sizeof(T), (n - i) * sizeof(T));
    padded[s] = reinterpret_cast<const std::byte*>(tails[s]);
  }
  Acc<T> lanes[HWY_LANES(Acc<T>)];
  hn::StoreU(tree_at<T, Op, 0, kCount>(padded, 0), d, lanes);
  std::memcpy(out + i, lanes, (n - i) * sizeof(Acc<T>));
}

template <class T, class Op>
void reduce_block(std::span<const std::byte* const> sources, size_t at, Acc<T>* out, size_t n) {
  const std::byte* const* s = sources.data();
  switch (sources.size()) {
    case 1: return reduce_fixed<T, Op, 1>(s, at, out, n);
    case 2: return reduce_fixed<T, Op, 2>(s, at, out, n);
    case 3: return reduce_fixed<T, Op, 3>(s, at, out, n);
    case 4: return reduce_fixed<T, Op, 4>(s, at, out, n);
    case 5: return reduce_fixed<T, Op, 5>(s, at, out, n);
    case 6: return reduce_fixed<T, Op, 6>(s, at, out, n);
    case 7: return reduce_fixed<T, Op, 7>(s, at, out, n);
    case kInRegisters: return reduce_fixed<T, Op, kInRegisters>(s, at, out, n);
    default: break;
  }
  const auto left = static_cast<size_t>(left_share(static_cast<int>(sources.size())));
  Acc<T> right[kBlock];
  reduce_block<T, Op>(sources.first(left), at, out, n);
  reduce_block<T, Op>(sources.subspan(left), at, right, n);
  const std::byte* halves[2] = {reinterpret_cast<const std::byte*>(out),
                                reinterpret_cast<const std::byte*>(right)};
  reduce_fixed<Acc<T>, Op, 2>(halves, 0, out, n);
}

/// Rounds once, to nearest even.
template <class T>
void narrow(const float* acc, std::byte* out, size_t n) {
  if constexpr (std::is_same_v<T, Half>) {
    const Tag<float> d;
    const hn::Rebind<hwy::float16_t, Tag<float>> half;
    const size_t width = hn::Lanes(d);
    hwy::float16_t lanes[HWY_LANES(float)];
    for (size_t i = 0; i < n; i += width) {  // acc has kBlock elements, a multiple of the width
      hn::StoreU(hn::DemoteTo(half, hn::LoadU(d, acc + i)), half, lanes);
      std::memcpy(out + i * sizeof(T), lanes, std::min(width, n - i) * sizeof(T));
    }
  } else {
    for (size_t i = 0; i < n; ++i) {
      const uint16_t bits = tensor::f32_to_bf16_bits(acc[i]);
      std::memcpy(out + i * sizeof(T), &bits, sizeof(T));
    }
  }
}

template <class T, class Op>
void reduce_all(std::span<const std::byte* const> sources, size_t at, Bytes out) {
  const size_t count = out.size() / sizeof(T);
  Acc<T> acc[kBlock] = {};
  for (size_t i = 0; i < count; i += kBlock) {
    const size_t n = std::min(kBlock, count - i);
    reduce_block<T, Op>(sources, at + i * sizeof(T), acc, n);
    if constexpr (sizeof(T) == 2) {
      narrow<T>(acc, out.data() + i * sizeof(T), n);
    } else {
      std::memcpy(out.data() + i * sizeof(T), acc, n * sizeof(T));
    }
  }
}

template <class T>
void reduce_typed(std::span<const std::byte* const> sources, size_t at, Bytes out, ReduceOp op) {
  op == ReduceOp::sum ? reduce_all<T, Sum>(sources, at, out) : reduce_all<T, Max>(sources, at, out);
}

void reduce_any(std::span<const std::byte* const> sources, size_t at, Bytes out, Reduction r) {
  using tensor::DType;
  switch (r.dtype) {
    case DType::f32: return reduce_typed<float>(sources, at, out, r.op);
    case DType::f64: return reduce_typed<double>(sources, at, out, r.op);
    case DType::i64: return reduce_typed<int64_t>(sources, at, out, r.op);
    case DType::f16: return reduce_typed<Half>(sources, at, out, r.op);
    case DType::bf16: return reduce_typed<BFloat16>(sources, at, out, r.op);
    default: base::fail(base::ErrorCode::internal, "no reduction of ", name_of(r.dtype));
  }
}

}  // namespace
}  // namespace trireme::comm::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace trireme::comm {

HWY_EXPORT(reduce_any);

void tree_reduce(std::span<const std::byte* const> sources, size_t at, Bytes out, Reduction reduction) {
  HWY_DYNAMIC_DISPATCH(reduce_any)(sources, at, out, reduction);
}

}  // namespace trireme::comm
#endif  // HWY_ONCE
