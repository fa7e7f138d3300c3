// Typed row functions: what a StridedLoop calls for a run of elements, made from a scalar functor and an
// element type.
#pragma once

#include <array>

#include "ops/elementwise/strided_loop.h"

namespace trireme::tensor::math {}

namespace trireme::ops {

/// The scalar functions, tensor/*_math.h.
namespace math = tensor::math;

/// Attributes of an elementwise op as numbers, in table order.
using Params = std::array<double, 2>;

struct RowArgs {
  const void* const* in;  // operand base addresses
  const int64_t* offset;  // first element of each operand
  const int64_t* step;    // steps of each operand along the row
  void* out;
  int64_t out_offset;  // results are dense
  int64_t n;
  const double* params;
  size_t operands;
};
using RowFn = void (*)(const RowArgs&);

/// Element types an op takes.
enum class Class : uint8_t { real, number, signed_number, integer, unsigned_integer, boolean, any };

/// Arithmetic on 16-bit floats happens in float.
template <class T>
using Arithmetic =
    std::conditional_t<std::is_same_v<T, tensor::Half> || std::is_same_v<T, tensor::BFloat16>, float, T>;

template <class T>
constexpr bool belongs(Class c) {
  constexpr bool is_bool = std::is_same_v<T, bool>;
  constexpr bool is_int = std::is_integral_v<T> && !is_bool;
  switch (c) {
    case Class::real: return !is_int && !is_bool;
    case Class::number: return !is_bool;
    case Class::signed_number: return !is_bool && !std::is_unsigned_v<T>;
    case Class::integer: return is_int;
    case Class::unsigned_integer: return is_int && std::is_unsigned_v<T>;
    case Class::boolean: return is_bool;
    case Class::any: return true;
  }
  return false;
}

/// True for the types visit_dtype knows.
inline bool has_arithmetic(tensor::DType t) {
  return tensor::bits_of(t) >= 16 || t == tensor::DType::i8 || t == tensor::DType::u8 ||
         t == tensor::DType::boolean;
}

template <class F, class T, class R>
void unary_row(const RowArgs& r) {
  const T* x = static_cast<const T*>(r.in[0]) + r.offset[0];
  R* y = static_cast<R*>(r.out) + r.out_offset;
  const F f(r.params);
  const int64_t step = r.step[0];
  if (step == 1) {
    for (int64_t i = 0; i < r.n; ++i) y[i] = static_cast<R>(f(static_cast<Arithmetic<T>>(x[i])));
  } else {
    for (int64_t i = 0; i < r.n; ++i) y[i] = static_cast<R>(f(static_cast<Arithmetic<T>>(x[i * step])));
  }
}

template <class F, class T, class R>
void binary_row(const RowArgs& r) {
  using C = Arithmetic<T>;
  const T* a = static_cast<const T*>(r.in[0]) + r.offset[0];
  const T* b = static_cast<const T*>(r.in[1]) + r.offset[1];
  R* y = static_cast<R*>(r.out) + r.out_offset;
  const F f(r.params);
  const int64_t sa = r.step[0], sb = r.step[1];
  if (sa == 1 && sb == 1) {
    for (int64_t i = 0; i < r.n; ++i) y[i] = static_cast<R>(f(static_cast<C>(a[i]), static_cast<C>(b[i])));
  } else if (sa == 1 && sb == 0) {
    const C v = static_cast<C>(*b);
    for (int64_t i = 0; i < r.n; ++i) y[i] = static_cast<R>(f(static_cast<C>(a[i]), v));
  } else if (sa == 0 && sb == 1) {
    const C v = static_cast<C>(*a);
    for (int64_t i = 0; i < r.n; ++i) y[i] = static_cast<R>(f(v, static_cast<C>(b[i])));
  } else {
    for (int64_t i = 0; i < r.n; ++i)
      y[i] = static_cast<R>(f(static_cast<C>(a[i * sa]), static_cast<C>(b[i * sb])));
  }
}

/// Any number of operands, folded left to right in the arithmetic type; p[0] = 1 divides by their number.
template <class F, class T>
void variadic_row(const RowArgs& r) {
  using C = Arithmetic<T>;
  constexpr int64_t kTile = 256;
  C tile[kTile];
  const F f(r.params);
  const C scale = r.params[0] != 0 ? static_cast<C>(r.operands) : static_cast<C>(1);
  for (int64_t start = 0; start < r.n; start += kTile) {
    const int64_t n = std::min(kTile, r.n - start);
    for (size_t k = 0; k < r.operands; ++k) {
      const int64_t step = r.step[k];
      const T* x = static_cast<const T*>(r.in[k]) + r.offset[k] + start * step;
      if (k == 0) {
        for (int64_t i = 0; i < n; ++i) tile[i] = static_cast<C>(x[i * step]);
      } else {
        for (int64_t i = 0; i < n; ++i) tile[i] = f(tile[i], static_cast<C>(x[i * step]));
      }
    }
    T* y = static_cast<T*>(r.out) + r.out_offset + start;
    for (int64_t i = 0; i < n; ++i) y[i] = static_cast<T>(r.params[0] != 0 ? tile[i] / scale : tile[i]);
  }
}

/// The row function for an element type, or null where the op does not take it. `Make` has
/// `template <class T> static constexpr RowFn row`.
template <class Make, Class kClass>
RowFn row_for(tensor::DType dtype) {
  if (!has_arithmetic(dtype)) return nullptr;
  return tensor::visit_dtype(dtype, [](auto zero) -> RowFn {
    using T = decltype(zero);
    if constexpr (belongs<T>(kClass))
      return Make::template row<T>;
    else
      return nullptr;
  });
}

template <class F>
struct UnaryRow {
  template <class T>
  static constexpr RowFn row = &unary_row<F, T, T>;
};
template <class F>
struct PredicateRow {
  template <class T>
  static constexpr RowFn row = &unary_row<F, T, bool>;
};
template <class F>
struct BinaryRow {
  template <class T>
  static constexpr RowFn row = &binary_row<F, T, T>;
};
template <class F>
struct CompareRow {
  template <class T>
  static constexpr RowFn row = &binary_row<F, T, bool>;
};
template <class F>
struct VariadicRow {
  template <class T>
  static constexpr RowFn row = &variadic_row<F, T>;
};

}  // namespace trireme::ops
