// The scalar functions shared by all devices, in loops that the compiler vectorises for each SIMD level.
#include "backend/cpu/elementwise/typed_ops.h"

#include <cstring>

#include "backend/cpu/simd/simd_targets.h"
#include "tensor/binary_math.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/elementwise/typed_ops.cc"
#include "hwy/foreach_target.h"
// Must follow foreach_target.h, which sets the SIMD level.
#include "backend/cpu/simd/simd_vector.inc"

HWY_BEFORE_NAMESPACE();
namespace trireme::cpu::HWY_NAMESPACE {
namespace {

namespace math = tensor::math;
using tensor::DType;

constexpr size_t kBlock = 64;  // elements: whole vectors of any type at any level

// Reads a whole block before it writes, because the result may overwrite an operand.
template <class F, class T, class R>
HWY_INLINE void block(const T* a, const T* b, R* y) {
  const F f(nullptr);
  R out[kBlock];
  for (size_t i = 0; i < kBlock; ++i) out[i] = static_cast<R>(f(a[i], b[i]));
  std::memcpy(y, out, sizeof(out));
}

// One block of an operand that is not read in place: its first element repeated, or its last elements.
template <class T>
struct Held {
  T values[kBlock];
  void repeat(const T* x) {
    const T v = *x;
    for (size_t i = 0; i < kBlock; ++i) values[i] = v;
  }
  void copy(const T* x, size_t n) {
    repeat(x);
    std::memcpy(values, x, n * sizeof(T));
  }
};

// The last elements are computed as a block that ends with them. It is read before anything is written, as
// the result may overwrite an operand, and written last. Fewer elements than a block are first copied to one.
template <class F, bool kScalarA, bool kScalarB, class T, class R>
void tile(const void* a, const void* b, void* y, size_t n) {
  const T *p = static_cast<const T*>(a), *q = static_cast<const T*>(b);
  R* to = static_cast<R*>(y);
  Held<T> left, right;
  if (kScalarA) left.repeat(p);
  if (kScalarB) right.repeat(q);
  R out[kBlock];
  if (n < kBlock) {
    if (!kScalarA) left.copy(p, n);
    if (!kScalarB) right.copy(q, n);
    block<F>(left.values, right.values, out);
    std::memcpy(to, out, n * sizeof(R));
    return;
  }
  const size_t last = n - kBlock;
  block<F>(kScalarA ? left.values : p + last, kScalarB ? right.values : q + last, out);
  for (size_t i = 0; i < last; i += kBlock) {
    block<F>(kScalarA ? left.values : p + i, kScalarB ? right.values : q + i, to + i);
  }
  std::memcpy(to + last, out, sizeof(out));
}

template <class F, class T, class R = T>
TypedTiles tiles() {
  return {tile<F, false, false, T, R>, tile<F, false, true, T, R>, tile<F, true, false, T, R>};
}

// The form of a functor for booleans, which are bytes: any byte except 0 counts as true.
template <class Functor>
struct OnBytes {};
template <>
struct OnBytes<math::And> {
  explicit OnBytes(const double*) {}
  uint8_t operator()(uint8_t x, uint8_t y) const { return static_cast<uint8_t>((x != 0) & (y != 0)); }
};
template <>
struct OnBytes<math::Or> {
  explicit OnBytes(const double*) {}
  uint8_t operator()(uint8_t x, uint8_t y) const { return static_cast<uint8_t>((x | y) != 0); }
};
template <>
struct OnBytes<math::Xor> {
  explicit OnBytes(const double*) {}
  uint8_t operator()(uint8_t x, uint8_t y) const { return static_cast<uint8_t>((x != 0) != (y != 0)); }
};
template <>
struct OnBytes<math::Equal> {
  explicit OnBytes(const double*) {}
  uint8_t operator()(uint8_t x, uint8_t y) const { return static_cast<uint8_t>((x != 0) == (y != 0)); }
};

// The terms used in the rows: the element types of an operator, and whether its loops are tiled.
enum class Types : uint8_t { number, integer, boolean, any };
enum class Loops : uint8_t { tiled, plain };

template <class Functor, Types kTypes, Loops kLoops, class T>
TypedTiles row_tiles() {
  constexpr bool kIsBytes = std::is_same_v<T, bool>;
  if constexpr (kLoops == Loops::plain || std::is_floating_point_v<T> ||
                kIsBytes != (kTypes == Types::boolean))
    return {};
  else if constexpr (kIsBytes)
    return tiles<OnBytes<Functor>, uint8_t>();
  else
    return tiles<Functor, T>();
}

template <class Functor, Types kTypes, class T>
TypedTiles compare_tiles() {
  if constexpr (!std::is_same_v<T, bool>)
    return tiles<Functor, T, uint8_t>();
  else if constexpr (kTypes == Types::any)
    return tiles<OnBytes<Functor>, uint8_t>();
  else
    return {};
}

template <class T>
TypedTiles tiles_for(BinaryOp op) {
  switch (op) {
#define BINARY_ROW(name, Functor, types, loops, ...) \
  case BinaryOp::name##_:                            \
    return row_tiles<math::Functor, Types::types, Loops::loops, T>();
#define COMPARE_ROW(name, Functor, types, ...) \
  case BinaryOp::name##_:                      \
    return compare_tiles<math::Functor, Types::types, T>();
#define FOLD_ROW(name, Functor, ...) \
  case BinaryOp::name##_:            \
    return row_tiles<math::Functor, Types::number, Loops::tiled, T>();
#include "tensor/elementwise_rows.inc"
    case BinaryOp::count_: break;
  }
  return {};
}

TypedTiles tiles_of(BinaryOp op, DType dtype) {
  switch (dtype) {
    case DType::f32: return tiles_for<float>(op);
    case DType::i64: return tiles_for<int64_t>(op);
    case DType::i32: return tiles_for<int32_t>(op);
    case DType::u8: return tiles_for<uint8_t>(op);
    case DType::boolean: return tiles_for<bool>(op);
    default: return {};
  }
}

// Loads both values and combines them with a mask: no branch, no load that depends on the condition.
template <class W>
HWY_INLINE void select_block(const uint8_t* c, const W* a, const W* b, W* y) {
  W out[kBlock];
  for (size_t i = 0; i < kBlock; ++i) {
    const W mask = static_cast<W>(0 - static_cast<W>(c[i] != 0));
    out[i] = static_cast<W>((a[i] & mask) | (b[i] & static_cast<W>(~mask)));
  }
  std::memcpy(y, out, sizeof(out));
}

template <class W>
void select_run(const SelectWords& g, size_t n) {
  const uint8_t* c = static_cast<const uint8_t*>(g.c);
  const W *a = static_cast<const W*>(g.a), *b = static_cast<const W*>(g.b);
  W* y = static_cast<W*>(g.y);
  const bool one_a = g.a_step == 0, one_b = g.b_step == 0;
  Held<W> left, right;
  if (one_a) left.repeat(a);
  if (one_b) right.repeat(b);
  W out[kBlock];
  if (n < kBlock) {
    Held<uint8_t> condition;
    condition.copy(c, n);
    if (!one_a) left.copy(a, n);
    if (!one_b) right.copy(b, n);
    select_block<W>(condition.values, left.values, right.values, out);
    std::memcpy(y, out, n * sizeof(W));
    return;
  }
  const size_t last = n - kBlock;
  select_block<W>(c + last, one_a ? left.values : a + last, one_b ? right.values : b + last, out);
  for (size_t i = 0; i < last; i += kBlock) {
    select_block<W>(c + i, one_a ? left.values : a + i, one_b ? right.values : b + i, y + i);
  }
  std::memcpy(y + last, out, sizeof(out));
}

template <class W>
void select_typed(const SelectWords& g, size_t n) {
  const uint8_t* c = static_cast<const uint8_t*>(g.c);
  const W *a = static_cast<const W*>(g.a), *b = static_cast<const W*>(g.b);
  W* y = static_cast<W*>(g.y);
  if (g.c_step == 0) {
    const W* from = *c != 0 ? a : b;
    if ((*c != 0 ? g.a_step : g.b_step) != 0) {
      if (from != y) std::memmove(y, from, n * sizeof(W));
      return;
    }
    const W v = *from;
    for (size_t i = 0; i < n; ++i) y[i] = v;
    return;
  }
  select_run<W>(g, n);
}

void select_any(const SelectWords& g, size_t n) {
  switch (g.bytes) {
    case 1: return select_typed<uint8_t>(g, n);
    case 2: return select_typed<uint16_t>(g, n);
    case 4: return select_typed<uint32_t>(g, n);
    default: return select_typed<uint64_t>(g, n);
  }
}

}  // namespace
}  // namespace trireme::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace trireme::cpu {

HWY_EXPORT(tiles_of);
HWY_EXPORT(select_any);

std::optional<BinaryOp> typed_op_of(std::string_view name) {
  struct Row {
    std::string_view name;
    bool is_tiled;
  };
  constexpr bool tiled = true, plain = false;
  static constexpr Row kRows[] = {
#define BINARY_ROW(name, Functor, types, loops, ...) {#name, loops},
#define COMPARE_ROW(name, ...) {#name, tiled},
#define FOLD_ROW(name, ...) {#name, tiled},
#include "tensor/elementwise_rows.inc"
  };
  for (size_t i = 0; i < std::size(kRows); ++i) {
    if (kRows[i].name == name && kRows[i].is_tiled) return BinaryOp(i);
  }
  return std::nullopt;
}

TypedTiles typed_tiles(BinaryOp op, tensor::DType dtype) { return HWY_DYNAMIC_DISPATCH(tiles_of)(op, dtype); }
void select_words(const SelectWords& args, size_t n) {
  if (n > 0) HWY_DYNAMIC_DISPATCH(select_any)(args, n);
}

}  // namespace trireme::cpu
#endif
