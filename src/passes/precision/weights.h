// Weights of linear layers stored in 8 or 4 bits, or in a block format: what is asked for, and what it costs
// each layer.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/text/options.h"
#include "ir/graph.h"
#include "ops/blocks/blocks.h"
#include "ops/weight_only/weight_only.h"

namespace trireme::passes {

/// int8, int4: with scales of groups; from kFirstBlocks on tensor::block_formats() in their order.
enum class WeightBits {
  f32,
  int8,
  int4,
  q4_0,
  q4_1,
  q5_0,
  q5_1,
  q8_0,
  q2_k,
  q3_k,
  q4_k,
  q5_k,
  q6_k,
  iq4_nl,
  mxfp4
};
inline constexpr WeightBits kFirstBlocks = WeightBits::q4_0;

struct WeightOptions {
  WeightBits weights = WeightBits::f32;
  int64_t weight_group = 64;
  bool weight_zeros = false;
  ops::BlockRows weight_rows = ops::BlockRows::q8;  ///< how rows meet weights in block formats
  int64_t least_elements = 4096;                    ///< smaller weights stay as they are
  void fields(base::OptionList& f);
  /// Whether store_weights() may change a graph.
  bool stores() const { return weights != WeightBits::f32 || weight_rows != ops::BlockRows::q8; }
  /// The block format that was chosen, or null.
  const tensor::BlockFormat* blocks() const;
};

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
