// What a model's structure says about splitting its weights over tensor-parallel ranks: pairs of products
// around attention or around elementwise ops, tables of embeddings, heads.
#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ir/graph.h"

namespace trireme::passes {

/// columns: the dimension of the results; rows: that of the summands, whose sums the ranks add up;
/// vocabulary: the rows of a table, or the results of the head before a loss, in parts that may differ;
/// classes: the results of a small head; experts: whole matrices of a mixture's.
enum class WeightRole : uint8_t { columns, rows, vocabulary, classes, experts };

/// How a weight or a bias may be split.
struct WeightSplit {
  WeightRole role;
  size_t dim = 0;
  int sections = 1;            ///< packed queries, keys and values: 3; stored experts: as many as they are
  int64_t units = 1;           ///< what must not be cut: heads, experts; 1: single columns
  bool has_key_heads = false;  ///< of keys or values: split over as many ranks as there are key heads at most
  size_t group = 0;            ///< weights of a group are split together or not at all
  int64_t blocks = 0;  ///< of stored weights: summands are split by whole groups, or this weight stays
  std::string why;     ///< "queries of 12 heads", "before gelu", …
};

/// Query and key heads of the attention nodes in a graph.
struct HeadCounts {
  int64_t heads = 0, kv_heads = 0;
  std::string from;  ///< layer of the node
};
std::vector<HeadCounts> attention_heads(const ir::Graph& graph);

/// Weights (params and states) that can be split, by name. Shapes of activations may be symbolic. Reads
/// products (linear, matmul, gemm, and those of stored weights, whose scales are split alike), attention in
/// any of its forms, gathers and losses; what comes between may be views, transposes, rotations, casts,
/// dropout and elementwise ops. `vocabularies`: patterns of names whose tables and heads are split however
/// small they are. `whole_experts`: mixtures are split between experts, not through each.
std::map<std::string, WeightSplit> find_splits(const ir::Graph& graph,
                                               std::span<const std::string_view> vocabularies = {},
                                               bool whole_experts = false);

}  // namespace trireme::passes
