// What the inputs of products are like on real texts: sums by which rounding of weights can be chosen.
#pragma once

#include <map>
#include <set>
#include <string>

#include "ir/graph.h"

namespace trireme::passes {

/// The rows x of the product with a weight.
struct ProductInput {
  ir::ValueId x;      ///< [..., depth]
  int64_t depth = 0;  ///< static
};

/// By the name of a param: the products that read it as a matrix, as it is or by way of dequantize_weights,
/// dequantize_blocks, views and transposes. Weights of several products are left out.
std::map<std::string, ProductInput> product_inputs(const ir::Graph& graph);

/// A graph of the same inputs that gives, for the products with `weights`, the sum of x' x over all rows, f32
/// [depth, depth], or, not `whole`, of the squares of each channel, f32 [depth]. Products of one x share an
/// output. Outputs are named by number; `output_of` by weight.
struct MomentsGraph {
  ir::Graph graph;
  std::map<std::string, size_t> output_of;
};
MomentsGraph input_moments(const ir::Graph& graph, const std::set<std::string>& weights, bool whole);

}  // namespace trireme::passes
