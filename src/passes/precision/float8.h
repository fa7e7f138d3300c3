// Products on 8-bit floats: from marked products with 16-bit operands to quantizers and float8_product.
#pragma once

#include "ir/graph.h"
#include "tensor/device.h"

namespace trireme::passes {

/// Why a product by a matrix [n, k] (either way round) cannot have 8-bit operands; empty: it can.
ir::Refusal refuse_float8(int64_t n, int64_t k);

/// Rewrites linear, linear_grad_x and linear_grad_w that carry `float8` (see lower_precision) in the graph of
/// a whole step on one rank, static shapes. Each operand becomes codes with a power of two as the scale of
/// every row that is not summed over: E4M3 for x and w, E5M2 for dy. The quantizer of dy also sums it, as it
/// was, for a bias. An operand of several products is quantized once, rows and columns together. A product
/// whose local extents 16 does not divide keeps 16 bits. The CPU gets values of codes and plain products, so
/// that values of constant weights can be made ahead. Returns how many products it changed.
size_t lower_float8(ir::Graph& graph, tensor::DeviceKind device);

}  // namespace trireme::passes
