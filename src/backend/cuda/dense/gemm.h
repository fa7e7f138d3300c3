// Matrix products on the device: what is multiplied, how the result is finished, and a plan that runs it.
// Products are cuBLASLt's in builds with the toolkit and plain loops on the emulated device; what the library
// cannot finish in the same pass is done by kernels of ours behind it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "backend/cuda/dense/activation.h"
#include "base/memory/shared_cache.h"
#include "tensor/device.h"
#include "tensor/dtype.h"

namespace trireme::cuda {

/// Whose sums over k are asked for beside the product: of op(a), [m], or of op(b), [n].
enum class SumsOf : uint8_t { none, a, b };

/// What op(a) op(b) is multiplied by: nothing, the two numbers at scale_a and scale_b, or scale_a[row]
/// scale_b[column] (8-bit floats only, one product).
enum class Scales : uint8_t { none, single, vectors };

/// z = alpha op(a) op(b) + bias; then out = act(z + beta residual), or act(z) + beta residual, or
/// act'(aux) z.
struct GemmFinish {
  bool bias = false;  ///< [n], of the result's type
  bool residual = false;
  int64_t residual_row = 0, residual_column = 0;  ///< strides in elements; both 0 for one number
  float beta = 1;
  ActivationForm act;
  bool act_before_residual = false;
  bool writes_aux = false;     ///< the activation's argument is kept, laid out like the result
  bool is_gradient = false;    ///< the product is multiplied by the derivative of `act` at aux, which is read
  SumsOf sums = SumsOf::none;  ///< of the result's type; a launch may leave them out
};

/// out [m, n] = finish(op(a) [m, k] op(b) [k, n]), for each of outer x inner batches. All matrices are
/// row-major; a is [k, m] if transposed, b [n, k]. A leading dimension of 0 is that of neighbouring rows.
struct GemmShape {
  int64_t m = 0, n = 0, k = 0;
  bool transpose_a = false, transpose_b = false;
  int64_t lda = 0, ldb = 0, ldc = 0;
  /// Batch i * inner + j starts at i * outer_x + j * inner_x elements of each matrix.
  int64_t outer = 1, inner = 1;
  int64_t outer_a = 0, outer_b = 0, outer_c = 0, inner_a = 0, inner_b = 0, inner_c = 0;
  /// f32, f64, f16, bf16, f8e4m3fn and f8e5m2 (transpose_b only), i8 (transpose_b only).
  tensor::DType in = tensor::DType::f32, in_b = tensor::DType::f32;
  /// Like `in`; f32 for f16 and bf16 too; f32, f16 or bf16 for 8-bit floats; i32 for i8. Sums are f32 (f64;
  /// i32).
  tensor::DType out = tensor::DType::f32;
  float alpha = 1;
  Scales scales = Scales::none;
  GemmFinish finish;
};

/// Options of products, from the environment: kernels have no other channel.
struct GemmOptions {
  bool tf32 = false;         ///< TRIREME_CUDA_TF32=1: products of f32 with 10-bit mantissas
  bool library_sums = true;  ///< TRIREME_CUDA_SUMS=0: sums beside products by kernels of ours behind them
  bool measure = true;       ///< TRIREME_CUDA_TUNE=0: the library's first proposal instead of the fastest
  /// TRIREME_CUDA_DETERMINISTIC=1: one algorithm for any number of rows, which never splits a sum
  bool fixed_order = false;
  std::string cache_file;  ///< of measured choices; empty: none is kept
};
GemmOptions gemm_options_from_environment();

struct GemmPointers {
  const void *a = nullptr, *b = nullptr;
  void* out = nullptr;
  const void *bias = nullptr, *residual = nullptr;
  void* aux = nullptr;
  void* sums = nullptr;
  const float *scale_a = nullptr, *scale_b = nullptr;
};

/// A product whose algorithm is chosen. Any thread may run it.
class GemmPlan {
 public:
  virtual ~GemmPlan() = default;
  virtual int64_t workspace_bytes() const = 0;
  /// In stream order; does not allocate, can be recorded.
  virtual void run(tensor::Stream& stream, const GemmPointers& pointers, void* workspace) const = 0;
};

/// Where plans are made: `device` is null where a program is only looked at; its plans do not run.
struct GemmPlace {
  tensor::Device* device = nullptr;
  base::SharedCache* shared = nullptr;  ///< keeps the library's handle and the measured choices
};

/// Chooses the algorithm, by measurement where nobody did before. Throws unsupported for types without
/// products and unavailable where the library is not found.
std::shared_ptr<const GemmPlan> prepare_gemm(const GemmPlace& place, const GemmShape& shape);

}  // namespace trireme::cuda
