// Weights of linear layers stored in 8 or 4 bits: what is asked for, and what it costs each layer.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/text/options.h"
#include "ir/graph.h"
#include "ops/weight_only/weight_only.h"

namespace trireme::passes {

enum class WeightBits { f32, int8, int4 };

struct WeightOptions {
  WeightBits weights = WeightBits::f32;
  int64_t weight_group = 64;
  bool weight_zeros = false;
  int64_t least_elements = 4096;  ///< smaller weights stay as they are
  void fields(base::OptionList& f);
  bool stores() const { return weights != WeightBits::f32; }
};

/// What became of one product with a constant matrix.
struct WeightRow {
  std::string from;  ///< source layer, else the result's name
  int64_t n = 0, k = 0;
  int64_t bytes_before = 0, bytes_after = 0;
  double relative = 0, largest = 0;  ///< error: see ops::WeightError
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
    tensor::Tensor source;  ///< held, so that its address is its name
    ops::StoredWeights made;
    ops::WeightError error;
  };
  std::map<std::pair<const std::byte*, bool>, Entry> entries;  ///< by address and whether read by rows
};

/// Replaces matmul, gemm and linear by weight_only_linear where the right operand is a constant matrix whose
/// depth the groups divide. What linear does behind its product follows as nodes of its own. Throws
/// invalid_argument for a group that no kernel has.
WeightReport store_weights(ir::Graph& graph, const WeightOptions& options,
                           StoredWeightCache* cache = nullptr);

}  // namespace trireme::passes
