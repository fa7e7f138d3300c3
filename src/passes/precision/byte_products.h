// Products with whole numbers of quantized checkpoints as sums of bytes.
#pragma once

#include <functional>

#include "ir/graph.h"

namespace trireme::passes {

/// weight_only_linear of constant weights in 4 or 8 bits becomes block_linear with rows in 8 bits, products
/// over experts likewise: each
/// group's scale and zero point move beside its codes (tensor::all_block_formats), exactly. Calls `was_read`
/// with the codes of each matrix that moved: nothing reads them any more. For CPUs; devices read the given
/// form. Returns how many products changed.
size_t use_byte_products(ir::Graph& graph, const std::function<void(const tensor::Tensor&)>& was_read);

}  // namespace trireme::passes
