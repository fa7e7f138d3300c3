// Launchers of 8-bit floats: quantization by rows and columns, values of codes, and products with a scale
// each row of both operands.
#pragma once

#include "backend/cuda/dense/gemm.h"
#include "backend/cuda/device/on.h"

namespace trireme::cuda {

/// x [rows, n] -> codes and scales of rows and of columns; null: not asked for.
struct Float8Args {
  const void* x = nullptr;
  int64_t rows = 0, n = 0;
  bool e5m2 = false;
  uint8_t* row_codes = nullptr;     ///< [rows, n]
  float* row_scales = nullptr;      ///< [rows]
  uint8_t* column_codes = nullptr;  ///< [n, padded], zeros behind `rows`
  float* column_scales = nullptr;   ///< [n]
  float* column_sums = nullptr;     ///< [n], of x
  int64_t padded = 0;               ///< rows, rounded up to a multiple of 16
};
/// Rows alone: one pass, sizeof(T) + 1 bytes an element.
void float8_rows(On on, const Float8Args& args);
/// Columns, and rows with them: two passes, 2 sizeof(T) + 1 bytes an element, one more for rows.
int64_t float8_columns_workspace_bytes(int64_t rows, int64_t n);
void float8_columns(On on, const Float8Args& args, void* workspace);

/// y [rows, n] = codes scales[row], of On's type.
struct Float8ValuesArgs {
  const uint8_t* codes = nullptr;
  const float* scales = nullptr;
  void* y = nullptr;
  int64_t rows = 0, n = 0;
  bool e5m2 = false;
};
void float8_values(On on, const Float8ValuesArgs& args);

/// out [m, n] = act(product scale_a[row] scale_b[column] + bias + residual); the product in f32.
struct ScaledFinishArgs {
  const float *product = nullptr, *scale_a = nullptr, *scale_b = nullptr;
  const void *bias = nullptr, *residual = nullptr;
  void* out = nullptr;
  int64_t m = 0, n = 0;
  ActivationForm act;
  bool act_before_residual = false;
};
void finish_scaled(On on, const ScaledFinishArgs& args);

/// A plan for a shape with Scales::vectors: the library's own where it has one, else a product into f32 with
/// finish_scaled behind it. Throws unsupported where the device multiplies no 8-bit floats.
std::shared_ptr<const GemmPlan> prepare_scaled(const GemmPlace& place, const GemmShape& shape);

}  // namespace trireme::cuda
