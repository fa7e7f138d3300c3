// Elementwise functions of two tensors of f32: the vector code of the rows of tensor/elementwise_rows.inc,
// compiled once per SIMD level.
#include "backend/cpu/elementwise/binary_ops.h"

#include <algorithm>
#include <array>

#include "backend/cpu/simd/simd_targets.h"
#include "tensor/binary_math.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/elementwise/binary_ops.cc"
#include "hwy/foreach_target.h"
// Must follow foreach_target.h, which sets the SIMD level.
#include "backend/cpu/elementwise/vector_value.inc"

HWY_BEFORE_NAMESPACE();
namespace trireme::cpu::HWY_NAMESPACE {
namespace {

// Reads an operand vector by vector; a scalar operand is broadcast once.
struct VectorOperand {
  const float* p;
  HWY_INLINE VF whole(size_t i) const { return hn::LoadU(kF, p + i); }
  HWY_INLINE VF part(size_t i, size_t n) const { return load_n(p + i, n, 1.0f); }
};
struct ScalarOperand {
  VF v;
  HWY_INLINE VF whole(size_t) const { return v; }
  HWY_INLINE VF part(size_t, size_t) const { return v; }
};

template <class A, class B, class F>
HWY_INLINE void map2_run(const A& a, const B& b, float* y, size_t n, const F& f) {
  size_t i = 0;
  for (; i + 2 * kLanes <= n; i += 2 * kLanes) {
    const VF first = f(a.whole(i), b.whole(i));
    const VF second = f(a.whole(i + kLanes), b.whole(i + kLanes));
    hn::StoreU(first, kF, y + i);
    hn::StoreU(second, kF, y + i + kLanes);
  }
  for (; i + kLanes <= n; i += kLanes) hn::StoreU(f(a.whole(i), b.whole(i)), kF, y + i);
  if (i < n) store_n(f(a.part(i, n - i), b.part(i, n - i)), y + i, n - i);
}

template <class F>
void run_vv(const float* a, const float* b, float* y, size_t n) {
  map2_run(VectorOperand{a}, VectorOperand{b}, y, n, F());
}
template <class F>
void run_vs(const float* a, const float* b, float* y, size_t n) {
  map2_run(VectorOperand{a}, ScalarOperand{set(*b)}, y, n, F());
}
template <class F>
void run_sv(const float* a, const float* b, float* y, size_t n) {
  map2_run(ScalarOperand{set(*a)}, VectorOperand{b}, y, n, F());
}

/// The vector code of a functor of tensor/elementwise_rows.inc; has no call operator if there is none.
template <class Functor>
struct VectorForm {};

namespace math = tensor::math;
using math::Wide;
#define BINARY_FUNCTION(Functor, ...) VECTOR_BINARY(Functor, return __VA_ARGS__)
#define VECTOR_BINARY(Functor, ...)                                                                    \
  template <>                                                                                          \
  struct VectorForm<math::Functor> {                                                                   \
    using C = Lanes;                                                                                   \
    HWY_INLINE VF operator()(VF x_lanes, VF y_lanes) const { return value(C(x_lanes), C(y_lanes)).v; } \
    HWY_INLINE static C value(C x, C y) { __VA_ARGS__; }                                               \
  };
#define IF(condition, p, q) choose(condition, p, q)
#include "tensor/elementwise_rows.inc"
#undef IF

template <class Functor>
constexpr BinaryTiles tiles_of() {
  using Form = VectorForm<Functor>;
  if constexpr (std::is_invocable_v<Form, VF, VF>)
    return {run_vv<Form>, run_vs<Form>, run_sv<Form>};
  else
    return {};
}

const BinaryTiles* find(BinaryOp op) {
  static constexpr std::array<BinaryTiles, static_cast<size_t>(BinaryOp::count_)> kTable = {
#define BINARY_ROW(name, Functor, ...) tiles_of<math::Functor>(),
#define COMPARE_ROW(name, Functor, ...) tiles_of<math::Functor>(),
#define FOLD_ROW(name, Functor, ...) tiles_of<math::Functor>(),
#include "tensor/elementwise_rows.inc"
  };
  return &kTable[static_cast<size_t>(op)];
}

template <class F>
HWY_INLINE void map3_run(const SelectArgs& s, float* y, size_t n, const F& f) {
  const VF cs = set(*s.c), as = set(*s.a), bs = set(*s.b);
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const VF c = s.c_scalar ? cs : hn::LoadU(kF, s.c + i);
    const VF a = s.a_scalar ? as : hn::LoadU(kF, s.a + i);
    const VF b = s.b_scalar ? bs : hn::LoadU(kF, s.b + i);
    hn::StoreU(f(c, a, b), kF, y + i);
  }
  if (i == n) return;
  const VF c = s.c_scalar ? cs : load_n(s.c + i, n - i);
  const VF a = s.a_scalar ? as : load_n(s.a + i, n - i);
  const VF b = s.b_scalar ? bs : load_n(s.b + i, n - i);
  store_n(f(c, a, b), y + i, n - i);
}

void select_run(const SelectArgs& s, float* y, size_t n) {
  if (n == 0) return;
  map3_run(s, y, n,
           [](VF c, VF a, VF b) HWY_ATTR { return hn::IfThenElse(not_equal(c, hn::Zero(kF)), a, b); });
}

void muladd_run(const SelectArgs& s, float* y, size_t n) {
  if (n == 0) return;
  map3_run(s, y, n, [](VF c, VF a, VF b) HWY_ATTR { return hn::MulAdd(a, b, c); });
}

SelectTile find_select() { return select_run; }
SelectTile find_muladd() { return muladd_run; }

}  // namespace
}  // namespace trireme::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace trireme::cpu {

HWY_EXPORT(find);
HWY_EXPORT(find_select);
HWY_EXPORT(find_muladd);

std::optional<BinaryOp> binary_op_of(std::string_view name) {
  static constexpr std::string_view kNames[] = {
#define BINARY_ROW(name, ...) #name,
#define COMPARE_ROW(name, ...) #name,
#define FOLD_ROW(name, ...) #name,
#include "tensor/elementwise_rows.inc"
  };
  for (size_t i = 0; i < std::size(kNames); ++i) {
    if (kNames[i] == name && binary_tiles(BinaryOp(i)).vector_vector != nullptr) return BinaryOp(i);
  }
  return std::nullopt;
}

const BinaryTiles& binary_tiles(BinaryOp op) { return *HWY_DYNAMIC_DISPATCH(find)(op); }
SelectTile select_tile() { return HWY_DYNAMIC_DISPATCH(find_select)(); }
SelectTile muladd_tile() { return HWY_DYNAMIC_DISPATCH(find_muladd)(); }

namespace {

// 16384 floats per piece: about 10 us at one core's bandwidth, far more than the cost of handing it out.
constexpr int64_t kPiece = 16384;

void binary_flat(BinaryTile tile, const BinaryArgs& g, int64_t step_a, int64_t step_b,
                 base::ThreadPool& pool) {
  const int64_t n = g.rows * g.cols;
  pool.for_range((n + 15) / 16, kPiece / 16, [&](int64_t begin, int64_t end) {
    const int64_t first = begin * 16, last = std::min(n, end * 16);
    tile(g.a + first * step_a, g.b + first * step_b, g.y + first, static_cast<size_t>(last - first));
  });
}

// Steps of the operands in floats: per row and, for cutting a long row, per column (0 or 1).
struct RowSteps {
  int64_t a_row, b_row, a_col, b_col;
};

void binary_rows(BinaryTile tile, const BinaryArgs& g, const RowSteps& s, base::ThreadPool& pool) {
  if (g.rows <= 0 || g.cols <= 0) return;
  const int64_t blocks = (g.cols + kPiece - 1) / kPiece;
  const int64_t grain = std::max<int64_t>(1, kPiece / g.cols);
  pool.for_range(g.rows * blocks, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t row = i / blocks, col = i % blocks * kPiece;
      const int64_t n = std::min(kPiece, g.cols - col);
      tile(g.a + row * s.a_row + col * s.a_col, g.b + row * s.b_row + col * s.b_col, g.y + row * g.cols + col,
           static_cast<size_t>(n));
    }
  });
}

}  // namespace

void binary(BinaryOp op, BinaryForm form, const BinaryArgs& args, base::ThreadPool& pool) {
  const BinaryTiles& tiles = binary_tiles(op);
  const int64_t cols = args.cols;
  switch (form) {
    case BinaryForm::vector_vector: return binary_flat(tiles.vector_vector, args, 1, 1, pool);
    case BinaryForm::vector_scalar: return binary_flat(tiles.vector_scalar, args, 1, 0, pool);
    case BinaryForm::scalar_vector: return binary_flat(tiles.scalar_vector, args, 0, 1, pool);
    case BinaryForm::vector_row: return binary_rows(tiles.vector_vector, args, {cols, 0, 1, 1}, pool);
    case BinaryForm::row_vector: return binary_rows(tiles.vector_vector, args, {0, cols, 1, 1}, pool);
    case BinaryForm::vector_column: return binary_rows(tiles.vector_scalar, args, {cols, 1, 1, 0}, pool);
    case BinaryForm::column_vector: return binary_rows(tiles.scalar_vector, args, {1, cols, 0, 1}, pool);
  }
}

}  // namespace trireme::cpu
#endif
