// 8-bit floats as operands of products: rows or columns with a scale each, and products of two of them.
#pragma once

#include "ir/kernel.h"
#include "ir/schema.h"

namespace trireme::ops {

/// Operands of float8_product.
enum Float8Operand : size_t { kF8A, kF8ScaleA, kF8B, kF8ScaleB, kF8Bias, kF8Residual };

/// Summed extents are multiples of this: what 16-byte accesses of products ask for.
inline constexpr int64_t kFloat8Align = 16;

/// x [rows, n] as quantization sees it: all dimensions but the last are rows.
struct Float8Extents {
  int64_t rows = 0, n = 0;
  bool e5m2 = false;
  int64_t padded() const { return (rows + kFloat8Align - 1) / kFloat8Align * kFloat8Align; }
};
Float8Extents float8_extents(const ir::NodeView& node);

/// a [m, k] by the transpose of b [n, k].
struct Float8Product {
  int64_t m = 0, n = 0, k = 0;
};
Float8Product float8_product_extents(const ir::NodeView& node);

/// Numbers of the codes of rows and of columns among a node's results, their scales behind each; -1: none.
/// Behind those of columns their sums may be asked for.
struct Float8Results {
  int rows = -1, columns = -1;
  bool has_sums(const ir::NodeView& node) const {
    return columns >= 0 && node.out.size() > static_cast<size_t>(columns) + 2;
  }
};
inline constexpr Float8Results kF8Rows{0, -1}, kF8Columns{-1, 0}, kF8Both{0, 2};

std::vector<ir::Kernel> float8_quantize_cpu_kernels(Float8Results results);
std::vector<ir::Kernel> float8_values_cpu_kernels();

}  // namespace trireme::ops
