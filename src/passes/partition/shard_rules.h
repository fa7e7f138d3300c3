// Which weights tensor-parallel ranks split, and how: rules of a strategy, rules per name of known models,
// and what the graph shows (training contracts C2, C4).
#pragma once

#include <map>
#include <string>
#include <vector>

#include "ir/graph.h"
#include "passes/strategy.h"
#include "tensor/shard.h"

namespace trireme::passes {

/// The strategy with kv_ranks chosen where it is 0: key and value heads are split over as many of the tp
/// ranks as there are of them, and each such part is held by tp / kv_ranks ranks. Throws invalid_argument
/// where heads and ranks do not divide. To be called before the mesh is made.
Strategy choose_kv_ranks(const ir::Graph& graph, Strategy strategy);

/// What was decided for a weight.
struct PlacedWeight {
  std::string name;
  tensor::Dims dims;
  tensor::Shard shard;  ///< over the axes of Strategy::mesh()
  std::string why;
};

/// Every weight (param or state of more than one element) of a loss graph or an inference graph, in the
/// graph's order. In this order of precedence: a strategy's rules; names of GPT-2, nanoGPT, Llama, BERT and
/// ViT models and classifier heads; with `automatic`, pairs of products around attention or elementwise ops,
/// tables and heads with a large vocabulary. Names and structure say the same of how a weight is read: a
/// named weight must divide (invalid_argument names it, its heads and the ranks), others stay whole where
/// they do not. A vocabulary never needs to divide. Without tensor parallelism all are whole.
std::vector<PlacedWeight> place_weights(const ir::Graph& graph, const Strategy& strategy);

/// The split weights of place_weights() by name, as Partitioning::placed takes them.
std::map<std::string, tensor::Shard> place_params(const ir::Graph& graph, const Strategy& strategy);

/// One line a weight, neighbouring layers of a stack on one line: "h.{0..11}.attn.c_attn.weight [768,2304]
/// @tp:S(1/3): …".
std::string to_text(const std::vector<PlacedWeight>& weights, const tensor::MeshShape& mesh);

}  // namespace trireme::passes
