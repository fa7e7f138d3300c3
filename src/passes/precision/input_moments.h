// Statistics of the inputs of matrix products on real texts, by which the rounding of weights is chosen.
#pragma once

#include <map>
#include <set>
#include <string>

#include "ir/graph.h"

namespace trireme::passes {

/// The input x of the product with a weight.
struct ProductInput {
  ir::ValueId x;      ///< [..., depth]
  int64_t depth = 0;  ///< static
};

/// Returns, by the name of a param, the input of the product that reads it as a matrix, directly or through
/// dequantize_weights, dequantize_blocks, views and transposes. Params that several products read are left
/// out.
std::map<std::string, ProductInput> product_inputs(const ir::Graph& graph);

/// Builds a graph of the same inputs that computes, for the products with `weights`, the sum of x' x over all
/// rows, f32 [depth, depth], or, if not `whole`, the sum of squares of each channel, f32 [depth]. Products
/// with the same x share an output. Outputs are named by numbers; `output_of` gives the name for each weight.
struct MomentsGraph {
  ir::Graph graph;
  std::map<std::string, size_t> output_of;
};
MomentsGraph input_moments(const ir::Graph& graph, const std::set<std::string>& weights, bool whole);

}  // namespace trireme::passes
