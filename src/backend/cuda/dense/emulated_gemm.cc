// Products on the emulated device: plain loops in stream order. They compute no part of a finish, so that
// tests run the finishing kernels.
#include <cmath>

#include "backend/cuda/device/emulated_stream.h"
#include "backend/cuda/dense/gemm_choice.h"
#include "backend/cuda/dense/gemm_product.h"
#include "base/error.h"
#include "tensor/half.h"

namespace trireme::cuda {
namespace {

using tensor::DType;

/// Value of an 8-bit float with `exponent_bits` and `mantissa_bits`; e4m3fn has no infinity.
float float8_value(uint8_t bits, int exponent_bits, int mantissa_bits) {
  const int exponent = bits >> mantissa_bits & ((1 << exponent_bits) - 1);
  const int mantissa = bits & ((1 << mantissa_bits) - 1), bias = (1 << (exponent_bits - 1)) - 1;
  const bool finite_only = exponent_bits == 4;
  const int top = (1 << exponent_bits) - 1;
  float value;
  if (finite_only ? (bits & 0x7f) == 0x7f : exponent == top && mantissa != 0) {
    value = std::nanf("");
  } else if (!finite_only && exponent == top) {
    value = INFINITY;
  } else if (exponent == 0) {
    value = std::ldexp(static_cast<float>(mantissa), 1 - bias - mantissa_bits);
  } else {
    value = std::ldexp(static_cast<float>(mantissa + (1 << mantissa_bits)), exponent - bias - mantissa_bits);
  }
  return (bits & 0x80) != 0 ? -value : value;
}

template <class A>
A value_at(const void* at, int64_t i, DType type) {
  switch (type) {
    case DType::f32: return static_cast<A>(static_cast<const float*>(at)[i]);
    case DType::f64: return static_cast<A>(static_cast<const double*>(at)[i]);
    case DType::f16: return static_cast<A>(float{static_cast<const tensor::Half*>(at)[i]});
    case DType::bf16: return static_cast<A>(float{static_cast<const tensor::BFloat16*>(at)[i]});
    case DType::f8e4m3fn: return static_cast<A>(float8_value(static_cast<const uint8_t*>(at)[i], 4, 3));
    case DType::f8e5m2: return static_cast<A>(float8_value(static_cast<const uint8_t*>(at)[i], 5, 2));
    default: return static_cast<A>(static_cast<const int8_t*>(at)[i]);
  }
}

template <class A>
void store(void* at, int64_t i, DType type, A value) {
  switch (type) {
    case DType::f32: static_cast<float*>(at)[i] = static_cast<float>(value); return;
    case DType::f64: static_cast<double*>(at)[i] = static_cast<double>(value); return;
    case DType::f16: static_cast<tensor::Half*>(at)[i] = tensor::Half(static_cast<float>(value)); return;
    case DType::bf16:
      static_cast<tensor::BFloat16*>(at)[i] = tensor::BFloat16(static_cast<float>(value));
      return;
    default: static_cast<int32_t*>(at)[i] = static_cast<int32_t>(value);
  }
}

/// A matrix [rows, columns] after op(), at its place in memory.
struct MatrixView {
  const void* at;
  int64_t first, leading;
  bool transposed;
  DType type;

  template <class A>
  void read(int64_t rows, int64_t columns, A* out) const {
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < columns; ++j)
        out[i * columns + j] =
            value_at<A>(at, first + (transposed ? j * leading + i : i * leading + j), type);
    }
  }
};

/// Accumulates in type A in the order of k. `room` holds op(a), op(b) and one row of sums.
template <class A>
void multiply(const GemmShape& s, const GemmPointers& p, int64_t batch, A* room) {
  const int64_t i = batch / s.inner, j = batch % s.inner;
  const MatrixView left{p.a, i * s.outer_a + j * s.inner_a, s.lda, s.transpose_a, s.in};
  const MatrixView right{p.b, i * s.outer_b + j * s.inner_b, s.ldb, s.transpose_b, s.in_b};
  A *a = room, *b = a + s.m * s.k, *sum = b + s.k * s.n;
  left.read(s.m, s.k, a);
  right.read(s.k, s.n, b);
  const A scale =
      static_cast<A>(s.alpha) * static_cast<A>(s.scales == Scales::single ? *p.scale_a * *p.scale_b : 1.0f);
  for (int64_t row = 0; row < s.m; ++row) {
    std::fill_n(sum, s.n, A(0));
    for (int64_t l = 0; l < s.k; ++l) {
      const A x = a[row * s.k + l];
      const A* y = b + l * s.n;
      for (int64_t c = 0; c < s.n; ++c) sum[c] += x * y[c];
    }
    const int64_t at = i * s.outer_c + j * s.inner_c + row * s.ldc;
    for (int64_t c = 0; c < s.n; ++c) store(p.out, at + c, s.out, scale * sum[c]);
  }
}

class EmulatedProduct final : public GemmPlan {
 public:
  EmulatedProduct(const GemmShape& shape, const GemmOptions& options)
      : shape_(shape), alignment_(choice_alignment(shape, options)) {}
  int64_t workspace_bytes() const override {
    const int64_t width = shape_.in == DType::f64 ? 8 : 4;
    return width * (shape_.m * shape_.k + shape_.k * shape_.n + shape_.n);
  }
  void run(tensor::Stream& stream, const GemmPointers& pointers, void* room) const override {
    for (const void* at : {pointers.a, pointers.b, static_cast<const void*>(pointers.out)})
      require_aligned(at);
    static_cast<EmulatedStream&>(stream).launch([shape = shape_, pointers, room](HostGrid&) {
      for (int64_t b = 0; b < shape.outer * shape.inner; ++b) {
        if (shape.in == DType::i8) {
          multiply(shape, pointers, b, static_cast<int32_t*>(room));
        } else if (shape.in == DType::f64) {
          multiply(shape, pointers, b, static_cast<double*>(room));
        } else {
          multiply(shape, pointers, b, static_cast<float*>(room));
        }
      }
    });
  }

 private:
  /// The library chooses algorithms for this alignment and is wrong, or slow, at other addresses.
  void require_aligned(const void* at) const {
    base::check(reinterpret_cast<uintptr_t>(at) % static_cast<uintptr_t>(alignment_) == 0,
                "a matrix of a product at an address that is no multiple of ", alignment_);
  }

  GemmShape shape_;
  int64_t alignment_;
};

}  // namespace

std::unique_ptr<GemmPlan> make_product(const GemmPlace&, const GemmShape& shape, const GemmOptions& options) {
  if (has_finish(shape.finish) || shape.finish.sums != SumsOf::none || shape.scales == Scales::vectors)
    return nullptr;
  return std::make_unique<EmulatedProduct>(shape, options);
}

}  // namespace trireme::cuda
