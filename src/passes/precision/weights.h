// Weights of linear layers stored in 8 or 4 bits, or in a block format: what is asked for, and what it costs
// each layer.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "ir/graph.h"
#include "ops/weight_only/weight_only.h"
#include "passes/strategy_options.h"

namespace trireme::passes {

/// What became of one constant matrix under a product or a lookup.
struct WeightRow {
  std::string from;  ///< source layer, else the result's name
  int64_t n = 0, k = 0;
  int64_t bytes_before = 0, bytes_after = 0;
  double relative = 0, largest = 0;  ///< error: see ops::WeightError
  std::string format;                ///< of blocks; empty: groups
  double rows_error = 0;             ///< of products, where rows are rounded: for normal random numbers
  std::string why;                   ///< why it stays as it is; empty: it is stored
};

struct WeightReport {
  std::vector<WeightRow> rows;
  size_t stored() const;
  /// A line a layer and one of sums.
  std::string text() const;
};

/// Matrices that were stored for one graph, for the next graph that reads the same ones.
struct StoredWeightCache {
  struct Entry {
    tensor::Tensor source;    ///< held, so that its address is its name
    ops::StoredWeights made;  ///< of blocks: w alone
    ops::WeightError error;
  };
  std::map<std::pair<const std::byte*, bool>, Entry> entries;  ///< by address and whether read by rows
};

/// Replaces matmul, gemm and linear by weight_only_linear, or by block_linear for a block format, and
/// expert_linear by weight_only_experts or block_experts, where the
/// right operand is a constant matrix whose depth the groups or blocks divide. What linear does behind its
/// product follows as nodes of its own. Formats of 256 weights leave matrices of other depths in q8_0. For a
/// block format lookups in constant matrices become block_gather, too. Products that are in blocks already
/// get the given rows. Throws invalid_argument for a group that no kernel has.
WeightReport store_weights(ir::Graph& graph, const WeightOptions& options,
                           StoredWeightCache* cache = nullptr);

}  // namespace trireme::passes
