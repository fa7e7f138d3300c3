// The headers of generated kernels: the functors' own, and what these need of the standard library and of
// memory.
#include "backend/cuda/elementwise/element_text.h"

namespace trireme::cuda {

// Made by the build from src/tensor (cmake/folders.cmake).
extern const char* const kElementMathText;
extern const char* const kBinaryMathText;
extern const char* const kDerivativeMathText;
extern const char* const kElementwiseRowsText;

namespace {

constexpr std::string_view kInteger = R"(#pragma once
typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long int64_t;
typedef unsigned long uint64_t;
)";

constexpr std::string_view kTraits = R"(#pragma once
namespace std {
template <class T, class U> constexpr bool is_same_v = false;
template <class T> constexpr bool is_same_v<T, T> = true;
template <bool kFirst, class T, class U> struct conditional { using type = T; };
template <class T, class U> struct conditional<false, T, U> { using type = U; };
template <bool kFirst, class T, class U> using conditional_t = typename conditional<kFirst, T, U>::type;
template <class T> constexpr bool is_floating_point_v = is_same_v<T, float> || is_same_v<T, double>;
template <class T> constexpr bool is_integral_v = !is_floating_point_v<T>;
template <class T> constexpr bool is_signed_v = T(-1) < T(0);
template <class T> constexpr bool is_unsigned_v = !is_signed_v<T>;
}  // namespace std
)";

constexpr std::string_view kLimits = R"(#pragma once
#include <type_traits>
namespace std {
template <class T> struct numeric_limits {
  static constexpr T most = std::is_signed_v<T> ? T((1ull << (8 * sizeof(T) - 1)) - 1) : T(~0ull);
  static constexpr T max() { return most; }
  static constexpr T lowest() { return std::is_signed_v<T> ? T(-most - 1) : T(0); }
};
template <> struct numeric_limits<bool> {
  static constexpr bool max() { return true; }
  static constexpr bool lowest() { return false; }
};
template <> struct numeric_limits<float> {
  static constexpr float max() { return 0x1.fffffep127f; }
  static constexpr float lowest() { return -0x1.fffffep127f; }
  static constexpr float infinity() { return __builtin_bit_cast(float, 0x7f800000u); }
};
template <> struct numeric_limits<double> {
  static constexpr double max() { return 0x1.fffffffffffffp1023; }
  static constexpr double lowest() { return -0x1.fffffffffffffp1023; }
  static constexpr double infinity() { return __builtin_bit_cast(double, 0x7ff0000000000000ull); }
  static constexpr double quiet_NaN() { return __builtin_bit_cast(double, 0x7ff8000000000000ull); }
};
}  // namespace std
)";

constexpr std::string_view kMath = R"(#pragma once
#define BOTH(name) \
  __device__ inline float name(float x) { return ::name##f(x); } \
  __device__ inline double name(double x) { return ::name(x); }
#define BOTH2(name) \
  __device__ inline float name(float x, float y) { return ::name##f(x, y); } \
  __device__ inline double name(double x, double y) { return ::name(x, y); }
namespace std {
BOTH(floor) BOTH(ceil) BOTH(nearbyint) BOTH(exp) BOTH(log) BOTH(sqrt) BOTH(sin) BOTH(cos) BOTH(tan)
BOTH(asin) BOTH(acos) BOTH(atan) BOTH(sinh) BOTH(cosh) BOTH(tanh) BOTH(asinh) BOTH(acosh) BOTH(atanh)
BOTH(erf) BOTH(log1p) BOTH(expm1) BOTH(fabs)
BOTH2(fmax) BOTH2(fmin) BOTH2(fmod) BOTH2(pow)
}  // namespace std
#undef BOTH
#undef BOTH2
)";

constexpr std::string_view kDevice = R"(#pragma once
#define DEVICE __device__ __forceinline__
#define KERNEL(threads) extern "C" __global__ void __launch_bounds__(threads)
#define UNROLL _Pragma("unroll")
struct Half { unsigned short bits; };
struct BFloat16 { unsigned short bits; };
DEVICE float widened(Half v) { float r; asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"(v.bits)); return r; }
DEVICE float widened(BFloat16 v) { return __uint_as_float(static_cast<unsigned>(v.bits) << 16); }
DEVICE Half rounded_half(float v) { Half r; asm("cvt.rn.f16.f32 %0, %1;" : "=h"(r.bits) : "f"(v)); return r; }
DEVICE BFloat16 rounded_bfloat(float v) {
  BFloat16 r;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(r.bits) : "f"(v));
  return r;
}
)";

constexpr std::string_view kElements = R"(#pragma once
#include "device.h"
#include "tensor/binary_math.h"
#include "tensor/derivative_math.h"
namespace math = trireme::tensor::math;

struct Boolean { uint8_t value; };
struct Arguments {
  const void* in[16];
  void* out[8];
  long long count;
};
template <class T, int N> struct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) Some { T item[N]; };

template <class T> DEVICE T widened(T v) { return v; }
DEVICE uint8_t widened(Boolean v) { return v.value != 0 ? 1 : 0; }

template <class T, class C> DEVICE T stored(C v) {
  if constexpr (std::is_same_v<T, Half>) return rounded_half(static_cast<float>(v));
  else if constexpr (std::is_same_v<T, BFloat16>) return rounded_bfloat(static_cast<float>(v));
  else if constexpr (std::is_same_v<T, Boolean>) return Boolean{static_cast<uint8_t>(v != C(0) ? 1 : 0)};
  else return math::converted<T>(v);
}
template <class T, class C> DEVICE C load_at(const void* from, int64_t i) {
  return static_cast<C>(widened(static_cast<const T*>(from)[i]));
}
template <class T, int N, class C> DEVICE void load(const void* from, int64_t i, C (&to)[N]) {
  const Some<T, N> some = *reinterpret_cast<const Some<T, N>*>(static_cast<const T*>(from) + i);
  UNROLL
  for (int j = 0; j < N; ++j) to[j] = static_cast<C>(widened(some.item[j]));
}
template <class T, int N, class C> DEVICE void load_one(const void* from, int64_t i, C (&to)[N]) {
  const C v = load_at<T, C>(from, i);
  UNROLL
  for (int j = 0; j < N; ++j) to[j] = v;
}
template <class T, int N> DEVICE void store(void* to, int64_t i, const Some<T, N>& v) {
  *reinterpret_cast<Some<T, N>*>(static_cast<T*>(to) + i) = v;
}
)";

}  // namespace

const std::vector<TextHeader>& element_headers() {
  static const std::vector<TextHeader> all{{"cstdint", kInteger},
                                           {"type_traits", kTraits},
                                           {"limits", kLimits},
                                           {"cmath", kMath},
                                           {"device.h", kDevice},
                                           {"elements.h", kElements},
                                           {"tensor/element_math.h", kElementMathText},
                                           {"tensor/binary_math.h", kBinaryMathText},
                                           {"tensor/derivative_math.h", kDerivativeMathText},
                                           {"tensor/elementwise_rows.inc", kElementwiseRowsText}};
  return all;
}

}  // namespace trireme::cuda
