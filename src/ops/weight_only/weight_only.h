// Weights of 4, 8 or 16 bits under products of float rows: their stored form (docs/formats.md), and how they
// are made.
#pragma once

#include <cstdint>

#include "ir/kernel.h"

namespace trireme::ops {

/// Groups of `group` neighbours along k share a scale, and a zero point where `asymmetric`.
struct WeightForm {
  int bits = 8;        ///< 8 or 4; of floats those of their type
  int64_t group = 64;  ///< 32, 64 or 128; floats of 16 bits have no scales
  bool asymmetric = false;
  tensor::DType type = tensor::DType::u8;  ///< u8: whole numbers of `bits`; f8e4m3fn, bf16, f16: floats

  bool has_scales() const { return type == tensor::DType::u8 || type == tensor::DType::f8e4m3fn; }
};

/// w [n, k bits / 8] bytes, or floats [n, k]; scale f32 [n, k / group], zero i8 of that shape or undefined.
struct StoredWeights {
  tensor::Tensor w, scale, zero;
};

/// How far the stored weights are from the given ones.
struct WeightError {
  double relative = 0;  ///< |W - stored| / |W|, by Frobenius norms
  double largest = 0;   ///< largest difference of one weight
};

/// Where row-major weights are, [n, k], or [k, n] where they are not `by_rows`.
struct WeightMatrix {
  const float* at = nullptr;
  int64_t n = 0, k = 0;
  bool by_rows = true;
};

/// Why products do not read weights of this depth so, or nothing.
ir::Refusal refuse_weight_form(const WeightForm& form, int64_t k);

/// Scales by least squares over a few candidates for each group of 4 bits, else by the largest weight. Throws
/// invalid_argument where a weight is not finite.
StoredWeights store_weights(const WeightMatrix& weights, const WeightForm& form, WeightError& error);

/// Weight `i` of a stored row, before its scale and zero point.
inline int stored_weight(const uint8_t* row, int64_t i, int bits) {
  if (bits == 8) return static_cast<int8_t>(row[i]);
  const uint8_t pair = row[i / 32 * 16 + i % 16];  // two halves of a block of 32
  return i % 32 < 16 ? pair & 15 : pair >> 4;
}
/// The zero point of stored weights that have none.
inline int default_zero(int bits) { return bits == 8 ? 0 : 8; }

/// Extents of a node.
struct WeightOnlyExtents {
  int64_t rows = 0, n = 0, k = 0;
  WeightForm form;
};
WeightOnlyExtents weight_only_extents(const ir::NodeView& node);

/// Operands of weight_only_linear.
enum WeightOnlyOperand : size_t { kWoX, kWoWeights, kWoScale, kWoZero, kWoBias };

/// The form of weights of a type under a node's attributes. Throws invalid_argument for other types and bits.
WeightForm weight_form(const ir::Attrs& attrs, tensor::DType type, bool has_zero);

/// Checks operand `w_at`, stored weights [n, ...] of a form, with its scales and zero points behind it.
/// Returns their depth. Throws invalid_argument.
int64_t check_stored_weights(const ir::NodeView& node, size_t w_at, const WeightForm& form);

/// Operands of dequantize_weights.
enum DequantizeOperand : size_t { kDqWeights, kDqScale, kDqZero, kDqOrder };

/// Extents of a dequantize_weights.
struct DequantizeExtents {
  int64_t n = 0, k = 0;
  WeightForm form;
};
DequantizeExtents dequantize_extents(const ir::NodeView& node);

/// Rows of n weights that a device turns into floats at a time, row_bytes each: of about 64 MiB, and 64 or a
/// multiple, because the results of each such panel must begin on 16 bytes in a row of y.
int64_t weight_panel_rows(int64_t n, int64_t row_bytes);

std::vector<ir::Kernel> weight_only_linear_cpu_kernels();
std::vector<ir::Kernel> dequantize_weights_cpu_kernels();

}  // namespace trireme::ops
