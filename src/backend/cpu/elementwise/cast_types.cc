// Casts: SIMD loops for the pairs that weights and activations use, a tile of double or int64 in L1 for all
// others.
#include "backend/cpu/elementwise/cast_types.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "backend/cpu/elementwise/cast_float8.h"
#include "backend/cpu/simd/simd_targets.h"
#include "base/error.h"
#include "tensor/half.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/elementwise/cast_types.cc"
#include "hwy/foreach_target.h"
// Must follow foreach_target.h, which sets the SIMD level.
#include "backend/cpu/simd/simd_vector.inc"

HWY_BEFORE_NAMESPACE();
namespace trireme::cpu::HWY_NAMESPACE {
namespace {

using tensor::bf16_bits_to_f32;
using tensor::f16_bits_to_f32;
using tensor::f32_to_bf16_bits;
using tensor::f32_to_f16_bits;

void f16_to_f32_run(const uint16_t* x, float* y, size_t n) {
  size_t i = 0;
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
  const hn::Rebind<hwy::float16_t, F32> d16;
  const hn::Rebind<uint16_t, F32> u16;
  for (; i + kLanes <= n; i += kLanes) {
    hn::StoreU(hn::PromoteTo(kF, hn::BitCast(d16, hn::LoadU(u16, x + i))), kF, y + i);
  }
#endif
  for (; i < n; ++i) y[i] = f16_bits_to_f32(x[i]);
}

void f32_to_f16_run(const float* x, uint16_t* y, size_t n) {
  size_t i = 0;
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
  const hn::Rebind<hwy::float16_t, F32> d16;
  const hn::Rebind<uint16_t, F32> u16;
  for (; i + kLanes <= n; i += kLanes) {
    hn::StoreU(hn::BitCast(u16, hn::DemoteTo(d16, hn::LoadU(kF, x + i))), u16, y + i);
  }
#endif
  for (; i < n; ++i) y[i] = f32_to_f16_bits(x[i]);
}

// The compiler vectorises these for the level they are compiled at.
void bf16_to_f32_run(const uint16_t* x, float* y, size_t n) {
  for (size_t i = 0; i < n; ++i) y[i] = bf16_bits_to_f32(x[i]);
}
void f32_to_bf16_run(const float* x, uint16_t* y, size_t n) {
  for (size_t i = 0; i < n; ++i) y[i] = f32_to_bf16_bits(x[i]);
}

using tensor::DType;
using Direct = void (*)(const void* x, void* y, size_t n);

// Stands for bool: any byte except 0 is true.
struct Truth {};

// Truncates a float and clamps it to the range of T; NaN gives 0. Written with masks, so that loops can be
// vectorised.
template <class T>
HWY_INLINE T whole_of(float x) {
  using Limits = std::numeric_limits<T>;
  if constexpr (sizeof(T) < 4) {
    constexpr float kLow = static_cast<float>(Limits::min()), kHigh = static_cast<float>(Limits::max());
    const float above = x > kLow ? x : kLow;  // NaN gives kLow
    const float inside = above < kHigh ? above : kHigh;
    return static_cast<T>(static_cast<int32_t>(x == x ? inside : 0.0f));
  } else {
    // The upper limit of T is not a float; kBelow is the largest float below it.
    constexpr float kLimit = sizeof(T) == 4 ? 0x1p31f : 0x1p63f,
                    kBelow = sizeof(T) == 4 ? 0x1.fffffep30f : 0x1.fffffep62f;
    const float above = x > -kLimit ? x : -kLimit;
    const float inside = above < kLimit ? above : kBelow;
    const T whole = static_cast<T>(x == x ? inside : 0.0f);
    return x >= kLimit ? Limits::max() : whole;
  }
}

template <class From, class To>
struct Element {
  using In = From;
  using Out = To;
  static HWY_INLINE To cast(From x) {
    if constexpr (std::is_same_v<From, float> && std::is_integral_v<To>)
      return whole_of<To>(x);
    else
      return static_cast<To>(x);
  }
};
template <class To>
struct Element<Truth, To> {
  using In = uint8_t;
  using Out = To;
  static HWY_INLINE To cast(uint8_t x) { return static_cast<To>(x != 0); }
};
template <class From>
struct Element<From, Truth> {
  using In = From;
  using Out = uint8_t;
  static HWY_INLINE uint8_t cast(From x) { return x != 0; }
};
template <>
struct Element<Truth, Truth> {
  using In = uint8_t;
  using Out = uint8_t;
  static HWY_INLINE uint8_t cast(uint8_t x) { return x != 0; }
};

template <class From, class To>
void plain_run(const void* x, void* y, size_t n) {
  using E = Element<From, To>;
  const typename E::In* HWY_RESTRICT from = static_cast<const typename E::In*>(x);
  typename E::Out* HWY_RESTRICT to = static_cast<typename E::Out*>(y);
  for (size_t i = 0; i < n; ++i) to[i] = E::cast(from[i]);
}

template <class From>
Direct plain_from(DType to) {
  switch (to) {
    case DType::f32: return plain_run<From, float>;
    case DType::i8: return plain_run<From, int8_t>;
    case DType::u8: return plain_run<From, uint8_t>;
    case DType::i16: return plain_run<From, int16_t>;
    case DType::u16: return plain_run<From, uint16_t>;
    case DType::i32: return plain_run<From, int32_t>;
    case DType::i64: return plain_run<From, int64_t>;
    case DType::boolean: return plain_run<From, Truth>;
    case DType::f64: return plain_run<From, double>;
    default: return nullptr;
  }
}

// Loops of pairs whose elements convert one by one with at most one rounding. Null: another way is needed.
Direct plain_of(DType from, DType to) {
  switch (from) {
    case DType::f32: return plain_from<float>(to);
    case DType::i8: return plain_from<int8_t>(to);
    case DType::u8: return plain_from<uint8_t>(to);
    case DType::i16: return plain_from<int16_t>(to);
    case DType::u16: return plain_from<uint16_t>(to);
    case DType::i32: return plain_from<int32_t>(to);
    case DType::i64: return plain_from<int64_t>(to);
    case DType::boolean: return plain_from<Truth>(to);
    case DType::f64:
      return to == DType::f32       ? plain_run<double, float>
             : to == DType::boolean ? plain_run<double, Truth>
                                    : nullptr;
    default: return nullptr;
  }
}

}  // namespace
}  // namespace trireme::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace trireme::cpu {

HWY_EXPORT(f16_to_f32_run);
HWY_EXPORT(f32_to_f16_run);
HWY_EXPORT(bf16_to_f32_run);
HWY_EXPORT(f32_to_bf16_run);
HWY_EXPORT(plain_of);

void f16_to_f32(const uint16_t* x, float* y, size_t n) { HWY_DYNAMIC_DISPATCH(f16_to_f32_run)(x, y, n); }
void f32_to_f16(const float* x, uint16_t* y, size_t n) { HWY_DYNAMIC_DISPATCH(f32_to_f16_run)(x, y, n); }
void bf16_to_f32(const uint16_t* x, float* y, size_t n) { HWY_DYNAMIC_DISPATCH(bf16_to_f32_run)(x, y, n); }
void f32_to_bf16(const float* x, uint16_t* y, size_t n) { HWY_DYNAMIC_DISPATCH(f32_to_bf16_run)(x, y, n); }

namespace {

using tensor::DType;

constexpr size_t kTile = 512;

template <class T>
constexpr bool is_whole = std::is_integral_v<T>;

// Rounds a double to float with "round to odd": inexact results get an odd last bit, so that a second
// rounding to fewer bits is correct (Boldo & Melquiond 2008).
float round_to_odd(double x) {
  const float f = static_cast<float>(x);
  if (static_cast<double>(f) == x || x != x || std::isinf(f)) return f;
  if ((std::bit_cast<uint32_t>(f) & 1u) != 0) return f;
  // f is even and inexact: its neighbour on the side of x is odd.
  return std::nextafterf(f, x > static_cast<double>(f) ? HUGE_VALF : -HUGE_VALF);
}

template <class T>
T whole_from_double(double x) {
  if (x != x) return 0;
  // 2^63 is not an int64, so x is compared with the first value outside the range.
  const double above = std::ldexp(1.0, std::numeric_limits<T>::digits);
  if (x >= above) return std::numeric_limits<T>::max();
  if (x <= static_cast<double>(std::numeric_limits<T>::min())) return std::numeric_limits<T>::min();
  return static_cast<T>(x);
}

Float8 float8_of(DType t) {
  switch (t) {
    case DType::f8e4m3fn: return Float8::e4m3fn;
    case DType::f8e4m3fnuz: return Float8::e4m3fnuz;
    case DType::f8e5m2: return Float8::e5m2;
    default: return Float8::e5m2fnuz;
  }
}

bool is_float8(DType t) {
  return t == DType::f8e4m3fn || t == DType::f8e4m3fnuz || t == DType::f8e5m2 || t == DType::f8e5m2fnuz;
}

// u64 values are carried as the bits of i64 and distinguished where the value matters (to float).
bool is_whole_type(DType t) { return tensor::is_integer(t) || t == DType::boolean; }

template <class T, class Wide>
void widen_run(const void* x, size_t n, Wide* y) {
  const T* from = static_cast<const T*>(x);
  for (size_t i = 0; i < n; ++i) y[i] = static_cast<Wide>(from[i]);
}

// Reads n integers, extended to 64 bits.
void load_whole(DType t, const void* x, size_t n, int64_t* y) {
  switch (t) {
    case DType::i8: return widen_run<int8_t>(x, n, y);
    case DType::u8: return widen_run<uint8_t>(x, n, y);
    case DType::i16: return widen_run<int16_t>(x, n, y);
    case DType::u16: return widen_run<uint16_t>(x, n, y);
    case DType::i32: return widen_run<int32_t>(x, n, y);
    case DType::u32: return widen_run<uint32_t>(x, n, y);
    case DType::boolean: {
      const uint8_t* from = static_cast<const uint8_t*>(x);
      for (size_t i = 0; i < n; ++i) y[i] = from[i] != 0;
      return;
    }
    default: std::memcpy(y, x, n * 8);
  }
}

// Reads n floats as doubles, which is exact.
void load_real(DType t, const void* x, size_t n, double* y) {
  const uint16_t* half = static_cast<const uint16_t*>(x);
  switch (t) {
    case DType::f64: std::memcpy(y, x, n * 8); return;
    case DType::f32: return widen_run<float>(x, n, y);
    case DType::f16:
      for (size_t i = 0; i < n; ++i) y[i] = static_cast<double>(tensor::f16_bits_to_f32(half[i]));
      return;
    case DType::bf16:
      for (size_t i = 0; i < n; ++i) y[i] = static_cast<double>(tensor::bf16_bits_to_f32(half[i]));
      return;
    default:
      for (size_t i = 0; i < n; ++i) {
        y[i] = static_cast<double>(float8_decode(float8_of(t), static_cast<const uint8_t*>(x)[i]));
      }
  }
}

template <class T, class Wide>
void narrow_run(const Wide* x, size_t n, void* y) {
  T* to = static_cast<T*>(y);
  for (size_t i = 0; i < n; ++i) {
    if constexpr (is_whole<T> && std::is_same_v<Wide, double>)
      to[i] = whole_from_double<T>(x[i]);
    else
      to[i] = static_cast<T>(x[i]);
  }
}

// Writes n doubles or integers as integers of type t.
template <class Wide>
void store_whole(DType t, const Wide* x, size_t n, void* y) {
  switch (t) {
    case DType::i8: return narrow_run<int8_t>(x, n, y);
    case DType::u8: return narrow_run<uint8_t>(x, n, y);
    case DType::i16: return narrow_run<int16_t>(x, n, y);
    case DType::u16: return narrow_run<uint16_t>(x, n, y);
    case DType::i32: return narrow_run<int32_t>(x, n, y);
    case DType::u32: return narrow_run<uint32_t>(x, n, y);
    case DType::i64: return narrow_run<int64_t>(x, n, y);
    case DType::u64: return narrow_run<uint64_t>(x, n, y);
    default: {
      uint8_t* to = static_cast<uint8_t*>(y);
      for (size_t i = 0; i < n; ++i) to[i] = x[i] != 0;
    }
  }
}

// Writes n doubles as floats with one rounding.
void store_real(const Cast& g, const double* x, size_t n, void* y) {
  uint16_t* half = static_cast<uint16_t*>(y);
  switch (g.to) {
    case DType::f64: std::memcpy(y, x, n * 8); return;
    case DType::f32: return narrow_run<float>(x, n, y);
    case DType::f16:
      for (size_t i = 0; i < n; ++i) half[i] = tensor::f32_to_f16_bits(round_to_odd(x[i]));
      return;
    case DType::bf16:
      for (size_t i = 0; i < n; ++i) half[i] = tensor::f32_to_bf16_bits(round_to_odd(x[i]));
      return;
    default:
      for (size_t i = 0; i < n; ++i) {
        static_cast<uint8_t*>(y)[i] = float8_encode(float8_of(g.to), round_to_odd(x[i]), g.saturate);
      }
  }
}

// Converts int64 (or u64) bits to floats with one rounding: f32 directly, other types through rounding to
// odd.
void store_real_from_whole(const Cast& g, const int64_t* x, size_t n, void* y) {
  const bool is_unsigned = g.from == DType::u64;
  if (g.to == DType::f32) {
    float* to = static_cast<float*>(y);
    for (size_t i = 0; i < n; ++i) {
      to[i] = is_unsigned ? static_cast<float>(static_cast<uint64_t>(x[i])) : static_cast<float>(x[i]);
    }
    return;
  }
  // Beyond 2^53 the double itself is rounded to 53 bits. No inexact value is that close to a tie of a 16- or
  // 8-bit type, so it is enough to set a sticky bit where bits were lost.
  double wide[kTile];
  for (size_t i = 0; i < n; ++i) {
    wide[i] = is_unsigned ? static_cast<double>(static_cast<uint64_t>(x[i])) : static_cast<double>(x[i]);
    if (g.to == DType::f64) continue;
    const bool exact =
        is_unsigned ? static_cast<uint64_t>(x[i]) < (1ull << 53) : std::llabs(x[i] >> 1) < (1ll << 52);
    if (exact) continue;
    const int64_t kept = x[i] & ~int64_t{0xFFF};  // at most 52 bits: exact in a double
    const int64_t lost = x[i] & 0xFFF;
    wide[i] = is_unsigned ? static_cast<double>(static_cast<uint64_t>(kept)) : static_cast<double>(kept);
    if (lost != 0) wide[i] += 2048.0;  // half of the cleared bits: on the same side of any 16-bit tie as x
  }
  store_real(g, wide, n, y);
}

void cast_tile(const Cast& g, const void* x, size_t n, void* y) {
  if (is_whole_type(g.from)) {
    int64_t wide[kTile];
    load_whole(g.from, x, n, wide);
    if (is_whole_type(g.to))
      store_whole(g.to, wide, n, y);
    else
      store_real_from_whole(g, wide, n, y);
    return;
  }
  double wide[kTile];
  load_real(g.from, x, n, wide);
  if (is_whole_type(g.to))
    store_whole(g.to, wide, n, y);
  else
    store_real(g, wide, n, y);
}

using Direct = void (*)(const void* x, void* y, size_t n);

#define TRIREME_DIRECT(name, From, To)                                               \
  [](const void* x, void* y, size_t n) {                                             \
    HWY_DYNAMIC_DISPATCH(name)(static_cast<const From*>(x), static_cast<To*>(y), n); \
  }

// The pair's own loop, or null.
Direct direct_of(DType from, DType to) {
  if (from == DType::f16 && to == DType::f32) return TRIREME_DIRECT(f16_to_f32_run, uint16_t, float);
  if (from == DType::bf16 && to == DType::f32) return TRIREME_DIRECT(bf16_to_f32_run, uint16_t, float);
  if (from == DType::f32 && to == DType::f16) return TRIREME_DIRECT(f32_to_f16_run, float, uint16_t);
  if (from == DType::f32 && to == DType::bf16) return TRIREME_DIRECT(f32_to_bf16_run, float, uint16_t);
  return HWY_DYNAMIC_DISPATCH(plain_of)(from, to);
}

// Two loops with a tile of f32 in between; the first is exact, so only the second rounds.
struct Through {
  Direct first = nullptr, second = nullptr;
};
Through through_f32(DType from, DType to) {
  const auto is_half = [](DType t) { return t == DType::f16 || t == DType::bf16; };
  const bool is_short = tensor::bits_of(from) <= 16 && is_whole_type(from);
  if (!is_half(from) && !(is_short && is_half(to))) return {};
  const Through both{direct_of(from, DType::f32), direct_of(DType::f32, to)};
  return both.first != nullptr && both.second != nullptr ? both : Through{};
}

void through_tile(const Through& through, const void* x, size_t n, void* y) {
  float tile[kTile];
  through.first(x, tile, n);
  through.second(tile, y, n);
}

void require_castable(DType t) {
  const bool ok = t == DType::f32 || t == DType::f64 || t == DType::f16 || t == DType::bf16 || is_float8(t) ||
                  (is_whole_type(t) && tensor::bits_of(t) >= 8);
  if (!ok) base::fail_unsupported("cast does not handle type ", tensor::name_of(t));
}

}  // namespace

void cast(const Cast& args, base::ThreadPool& pool) {
  require_castable(args.from);
  require_castable(args.to);
  const char* x = static_cast<const char*>(args.x);
  char* y = static_cast<char*>(args.y);
  const int64_t from_bytes = tensor::bits_of(args.from) / 8, to_bytes = tensor::bits_of(args.to) / 8;
  const Direct direct = direct_of(args.from, args.to);
  const bool same = args.from == args.to && args.to != DType::boolean;
  const Through through = direct == nullptr ? through_f32(args.from, args.to) : Through{};
  constexpr int64_t kStep = static_cast<int64_t>(kTile);
  pool.for_range((args.n + kStep - 1) / kStep, same || direct != nullptr ? 32 : 8,
                 [&](int64_t begin, int64_t end) {
                   for (int64_t i = begin * kStep; i < std::min(args.n, end * kStep); i += kStep) {
                     const size_t n = static_cast<size_t>(std::min(kStep, args.n - i));
                     const char* from = x + i * from_bytes;
                     char* to = y + i * to_bytes;
                     if (same)
                       std::memcpy(to, from, n * static_cast<size_t>(to_bytes));
                     else if (direct != nullptr)
                       direct(from, to, n);
                     else if (through.first != nullptr)
                       through_tile(through, from, n, to);
                     else
                       cast_tile(args, from, n, to);
                   }
                 });
}

}  // namespace trireme::cpu
#endif
