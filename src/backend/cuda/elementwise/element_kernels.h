// The interpreter of element programs: every thread runs the steps over a few elements at a time. For
// programs that were not compiled; the same functors as everywhere.
#pragma once

#include <type_traits>

#ifdef __CUDACC__
#pragma nv_diag_suppress 186  // functors compare unsigned numbers with zero
#endif

#include "backend/cuda/elementwise/element_program.h"
#include "backend/cuda/device/scalar.h"
#include "tensor/binary_math.h"
#include "tensor/derivative_math.h"

namespace trireme::cuda {

/// An element of any type with arithmetic as a C; a bool is 0 or 1.
template <class C>
TRIREME_DEVICE C load_element(tensor::DType type, const void* data, int64_t i) {
  using tensor::DType;
  constexpr bool kReal = std::is_floating_point_v<C>;
  if constexpr (kReal) {
    switch (type) {
      case DType::f32: return static_cast<C>(static_cast<const float*>(data)[i]);
      case DType::f16: return static_cast<C>(to_float(static_cast<const Half*>(data)[i]));
      case DType::bf16: return static_cast<C>(to_float(static_cast<const BFloat16*>(data)[i]));
      case DType::f64: return static_cast<C>(static_cast<const double*>(data)[i]);
      default: break;
    }
  }
  switch (type) {
    case DType::boolean: return static_cast<C>(static_cast<const uint8_t*>(data)[i] != 0 ? 1 : 0);
    case DType::i8: return static_cast<C>(static_cast<const int8_t*>(data)[i]);
    case DType::u8: return static_cast<C>(static_cast<const uint8_t*>(data)[i]);
    case DType::i16: return static_cast<C>(static_cast<const int16_t*>(data)[i]);
    case DType::u16: return static_cast<C>(static_cast<const uint16_t*>(data)[i]);
    case DType::i32: return static_cast<C>(static_cast<const int32_t*>(data)[i]);
    case DType::u32: return static_cast<C>(static_cast<const uint32_t*>(data)[i]);
    case DType::i64: return static_cast<C>(static_cast<const int64_t*>(data)[i]);
    case DType::u64: return static_cast<C>(static_cast<const uint64_t*>(data)[i]);
    default: return C(0);
  }
}

/// Floats truncate and clamp to integers, integers wrap.
template <class C>
TRIREME_DEVICE void store_element(tensor::DType type, void* data, int64_t i, C v) {
  using tensor::DType;
  using tensor::math::converted;
  switch (type) {
    case DType::f32: static_cast<float*>(data)[i] = static_cast<float>(v); return;
    case DType::f16: static_cast<Half*>(data)[i] = from_float<Half>(static_cast<float>(v)); return;
    case DType::bf16: static_cast<BFloat16*>(data)[i] = from_float<BFloat16>(static_cast<float>(v)); return;
    case DType::f64: static_cast<double*>(data)[i] = static_cast<double>(v); return;
    case DType::boolean: static_cast<uint8_t*>(data)[i] = v != C(0) ? 1 : 0; return;
    case DType::i8: static_cast<int8_t*>(data)[i] = converted<int8_t>(v); return;
    case DType::u8: static_cast<uint8_t*>(data)[i] = converted<uint8_t>(v); return;
    case DType::i16: static_cast<int16_t*>(data)[i] = converted<int16_t>(v); return;
    case DType::u16: static_cast<uint16_t*>(data)[i] = converted<uint16_t>(v); return;
    case DType::i32: static_cast<int32_t*>(data)[i] = converted<int32_t>(v); return;
    case DType::u32: static_cast<uint32_t*>(data)[i] = converted<uint32_t>(v); return;
    case DType::i64: static_cast<int64_t*>(data)[i] = converted<int64_t>(v); return;
    case DType::u64: static_cast<uint64_t*>(data)[i] = converted<uint64_t>(v); return;
    default: return;
  }
}

/// An element program with its addresses, as a launch's parameter (less than 4 KiB).
struct ElementCode {
  struct Source {
    const void* data;
    tensor::DType dtype;
    uint8_t form;  // ElementLoops::Form
    int64_t steps[kElementRank];
  };
  struct Result {
    void* data;
    tensor::DType dtype;
    uint8_t reg;
  };
  ElementStep steps[kElementSteps];
  Source sources[kElementInputs];
  Result results[kElementOutputs];
  double constants[kElementConstants];
  int64_t extent[kElementRank];
  int64_t count;
  uint8_t step_count, source_count, result_count, rank;
};

/// Which C the functions `real`, `number` and `integer` of element_ops.inc take.
namespace element_on {
template <class C>
inline constexpr bool real = std::is_floating_point_v<C>;
template <class C>
inline constexpr bool number = true;
template <class C>
inline constexpr bool integer = std::is_integral_v<C>;
}  // namespace element_on

/// Reads each operand once a step, writes each result once. Results are written after all operands were read,
/// so that a dense operand may be overwritten.
template <class C>
struct InterpretElements {
  static constexpr bool kIndependent = true;
  static constexpr int kMostThreads = 128;
  // Elements of a thread: its registers are an array in local memory. Functions of f64 take many of the
  // machine's own.
  static constexpr int kEach = std::is_same_v<C, double> ? 1 : 2;
  ElementCode code;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    const int64_t stride = lane.blocks() * lane.threads() * kEach;
    for (int64_t i = (lane.block() * lane.threads() + lane.thread()) * kEach; i < code.count; i += stride) {
      C reg[kElementRegisters][kEach];
      for (int s = 0; s < code.step_count; ++s) run_step(code.steps[s], i, reg);
      for (int r = 0; r < code.result_count; ++r) {
        const ElementCode::Result& to = code.results[r];
        for (int j = 0; j < kEach; ++j) {
          if (i + j < code.count) store_element<C>(to.dtype, to.data, i + j, reg[to.reg][j]);
        }
      }
    }
  }

 private:
  TRIREME_DEVICE int64_t place(const ElementCode::Source& from, int64_t i) const {
    if (from.form == 0) return i;
    if (from.form == 1) return 0;
    int64_t at = 0;
    for (int d = code.rank - 1; d >= 0; --d) {
      at += i % code.extent[d] * from.steps[d];
      i /= code.extent[d];
    }
    return at;
  }
  TRIREME_DEVICE void fetch(ElementRef ref, int64_t i, const C (&reg)[kElementRegisters][kEach],
                            C (&out)[kEach]) const {
    for (int j = 0; j < kEach; ++j) {
      if (ref.kind == ElementRef::Kind::reg) {
        out[j] = reg[ref.index][j];
      } else if (ref.kind == ElementRef::Kind::input) {
        const ElementCode::Source& from = code.sources[ref.index];
        const int64_t at = i + j < code.count ? i + j : code.count - 1;
        out[j] = load_element<C>(from.dtype, from.data, place(from, at));
      } else {
        out[j] = ref.kind == ElementRef::Kind::constant ? static_cast<C>(code.constants[ref.index]) : C(0);
      }
    }
  }
  template <class F>
  TRIREME_DEVICE static void unary(const double* p, const C (&a)[kEach], C (&y)[kEach]) {
    const F f(p);
    for (int j = 0; j < kEach; ++j) y[j] = static_cast<C>(f(a[j]));
  }
  template <class F>
  TRIREME_DEVICE static void binary(const double* p, const C (&a)[kEach], const C (&b)[kEach],
                                    C (&y)[kEach]) {
    const F f(p);
    for (int j = 0; j < kEach; ++j) y[j] = static_cast<C>(f(a[j], b[j]));
  }
  TRIREME_DEVICE void run_step(const ElementStep& step, int64_t i, C (&reg)[kElementRegisters][kEach]) const {
    namespace math = tensor::math;
    C a[kEach], b[kEach], c[kEach];
    fetch(step.a, i, reg, a);
    fetch(step.b, i, reg, b);
    fetch(step.c, i, reg, c);
    C(&y)[kEach] = reg[step.dst];
    switch (step.op) {
#define UNARY_OP(name, functor, on)                                      \
  case ElementOp::name##_:                                               \
    if constexpr (element_on::on<C>) unary<math::functor>(step.p, a, y); \
    break;
#define BINARY_OP(name, functor, on)                                         \
  case ElementOp::name##_:                                                   \
    if constexpr (element_on::on<C>) binary<math::functor>(step.p, a, b, y); \
    break;
#include "backend/cuda/elementwise/element_ops.inc"
#undef UNARY_OP
#undef BINARY_OP
      case ElementOp::copy_:
        for (int j = 0; j < kEach; ++j) y[j] = a[j];
        break;
      case ElementOp::select_:
        for (int j = 0; j < kEach; ++j) y[j] = a[j] != C(0) ? b[j] : c[j];
        break;
      case ElementOp::muladd_:
        for (int j = 0; j < kEach; ++j) y[j] = static_cast<C>(a[j] * b[j] + c[j]);
        break;
    }
  }
};

}  // namespace trireme::cuda
