// Mixtures whose experts are shared out over ranks: the form that the partition pass can cut.
#pragma once

#include <map>
#include <string>

#include "ir/graph.h"
#include "tensor/shard.h"

namespace trireme::passes {

/// Gives the products over experts whose weights are split between experts (along the first dimension, in one
/// section) rows of parts: of P parts, the first products of a mixture make [P, .., choices, n], in each part
/// the rows of its experts and zeros for choices of others; what stands between works on these, element by
/// element; the last product sums over parts and choices. Each rank then has one part, and the sum over ranks
/// is that of its result, as without. Runs on the whole graph, sorted before and after, shapes static.
/// Returns how many products it changed. Throws invalid_argument where ranks do not divide the experts, and
/// unsupported where anything else reads rows of choices, naming the layer.
size_t split_experts(ir::Graph& graph, const std::map<std::string, tensor::Shard>& placed,
                     const tensor::MeshShape& mesh);

}  // namespace trireme::passes
