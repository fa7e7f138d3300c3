// Products of rows by a matrix, whatever operator says so.
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

/// A matmul, gemm or linear as such a product; nullopt if it is none or scales its operands.
std::optional<MatrixProduct> matrix_product(Rewriter& rw, const ir::Node& node);

/// Adds what follows `y`, the product alone, and replaces the node.
void finish_product(Rewriter& rw, const ir::Node& node, const MatrixProduct& p, ir::ValueId y);

}  // namespace trireme::passes
