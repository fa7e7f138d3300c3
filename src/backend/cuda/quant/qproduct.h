// 8-bit products on the device: operands are made signed and padded for the library, sums are exact, and what
// follows them is one pass of ours.
#pragma once

#include <cstdint>
#include <memory>

#include "backend/cuda/dense/activation.h"
#include "backend/cuda/dense/gemm.h"
#include "backend/cuda/device/on.h"

namespace trireme::cuda {

/// What the library wants of extents: k and n of the padded matrices are multiples of it.
inline constexpr int64_t kQuantPad = 16;
constexpr int64_t quant_padded(int64_t n) { return (n + kQuantPad - 1) / kQuantPad * kQuantPad; }

/// Rows of a product: points of a convolution's result over channels-last x, each with its window's elements
/// [kernel_h, kernel_w, channels]; of a matrix, rows of `channels`.
struct QuantWindow {
  int64_t batch = 1, in_h = 1, in_w = 1, channels = 0, out_h = 1, out_w = 1;
  int64_t kernel_h = 1, kernel_w = 1, stride_h = 1, stride_w = 1, dilation_h = 1, dilation_w = 1;
  int64_t pad_h = 0, pad_w = 0;
  int64_t rows() const { return batch * out_h * out_w; }
  int64_t k() const { return kernel_h * kernel_w * channels; }
};

/// to [rows, padded k] i8: the elements less 128 where x is u8, `outside` beyond x, 0 beyond k. `sums`
/// [rows]: of what was written; null: not wanted.
struct PackRowsArgs {
  const void* x = nullptr;
  bool is_signed = false;
  int8_t outside = 0;
  int8_t* to = nullptr;
  int32_t* sums = nullptr;
  QuantWindow window;
};
void pack_quant_rows(tensor::Stream& stream, const PackRowsArgs& args);

/// to [padded n, padded k] i8 from b [k, n] (or [n, k] if transposed), with sums [padded n].
struct PackColumnsArgs {
  const void* b = nullptr;
  bool is_signed = false, transposed = false;
  int8_t* to = nullptr;
  int32_t* sums = nullptr;
  int64_t k = 0, n = 0;
};
void pack_quant_columns(tensor::Stream& stream, const PackColumnsArgs& args);

/// The product [rows, k] [k, n] into i32 [rows, padded n].
std::shared_ptr<const GemmPlan> prepare_quant_product(const GemmPlace& place, int64_t rows, int64_t n,
                                                      int64_t k);

/// y [rows, n] = acc - za column_sums - zb row_sums + k za zb; za [rows or 1], zb [n or 1] of their operands'
/// types, null: 0.
struct IntegerFinish {
  const int32_t* acc = nullptr;
  int32_t* y = nullptr;
  const void *a_zero = nullptr, *b_zero = nullptr;
  bool a_signed = false, b_signed = false, a_per_row = false, b_per_column = false;
  const int32_t *row_sums = nullptr, *column_sums = nullptr;
  int64_t rows = 0, n = 0, k = 0, a_rows = 1;  ///< a_per_row: row r has zero point r % a_rows
};
void finish_integers(tensor::Stream& stream, const IntegerFinish& args);

/// How exact sums become results: act((acc + offset[c] - w_zero[c] row_sum) factor[c]), in f32, or further
/// clamp(round(. inverse) + zero, low, high) in 8 bits. Without `act` the factor holds the inverse.
struct QuantFinish {
  const int32_t* acc = nullptr;
  void* y = nullptr;
  tensor::DType type = tensor::DType::u8;                                   ///< u8, i8 or f32
  const float* factor = nullptr;                                            ///< [n]
  const int32_t *offset = nullptr, *w_zero = nullptr, *row_sums = nullptr;  ///< [n], [n] or null, [rows]
  ActivationForm act;
  float y_scale = 1, zero = 0, low = 0, high = 0;
  int64_t rows = 0, n = 0;
};
void finish_quantized(tensor::Stream& stream, const QuantFinish& args);

/// Convolution of each channel by itself: w [kernel_h, kernel_w, channels] i8, finished as above (acc
/// unused).
struct QuantDepthwise {
  const void* x = nullptr;
  bool is_signed = false;
  int8_t outside = 0;
  const int8_t* w = nullptr;
  QuantWindow window;
  QuantFinish finish;
};
void quant_depthwise(tensor::Stream& stream, const QuantDepthwise& args);

/// y = clamp(round(fa a + fb b + shift)).
struct QuantAdd {
  const void *a = nullptr, *b = nullptr;
  void* y = nullptr;
  bool a_signed = false, b_signed = false, y_signed = false;
  float fa = 1, fb = 1, shift = 0, low = 0, high = 0;
  int64_t n = 0;
};
void quant_add(tensor::Stream& stream, const QuantAdd& args);

/// u8 over the range of x and 0: y, scale, zero. workspace: dynamic_quantize_workspace_bytes().
struct DynamicQuantize {
  const float* x = nullptr;
  uint8_t *y = nullptr, *zero = nullptr;
  float* scale = nullptr;
  int64_t n = 0;
  void* workspace = nullptr;
};
int64_t dynamic_quantize_workspace_bytes();
void dynamic_quantize(tensor::Stream& stream, const DynamicQuantize& args);

}  // namespace trireme::cuda
