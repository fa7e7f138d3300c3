// Products with weights that were stored in 4 to 16 bits as products with blocks.
#pragma once

#include <functional>

#include "ir/graph.h"
#include "ops/blocks/blocks.h"

namespace trireme::passes {

/// weight_only_linear of constant weights becomes block_linear, products over experts likewise. Of 4 and 8
/// bits, each group's scale and zero point move beside its codes (tensor::all_block_formats), exactly; calls
/// `was_read` with the codes of each matrix that moved: nothing reads them any more. Where `rows` are to stay
/// f32, products with codes stay, too. Floats of 16 bits stay where they are. Rows are as ops::rows_for says.
/// For CPUs; devices read the given form. Returns how many products changed.
size_t use_byte_products(ir::Graph& graph, ops::BlockRows rows,
                         const std::function<void(const tensor::Tensor&)>& was_read);

}  // namespace trireme::passes
