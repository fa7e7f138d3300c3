// One view of products of rows by a matrix, which several operators express.
#pragma once

#include <optional>

#include "ops/dense/activation.h"
#include "passes/rewriter.h"

namespace trireme::passes {

/// A product x W + bias, and what follows it.
struct MatrixProduct {
  ir::ValueId x, w, bias = ir::kNoValue, residual = ir::kNoValue;
  bool by_rows = false;  ///< W is [n, k]
  ops::ActivationSpec act;
};

/// Returns a matmul, gemm or linear in this form; nullopt for other nodes and for products with scale
/// factors.
std::optional<MatrixProduct> matrix_product(Rewriter& rw, const ir::Node& node);

/// Adds bias, activation and residual after `y`, the bare product, and replaces the node by the result.
void finish_product(Rewriter& rw, const ir::Node& node, const MatrixProduct& p, ir::ValueId y);

}  // namespace trireme::passes
