// Mixed precision: products compute on 16-bit operands, what would suffer stays f32, and the graph says
// which.
#pragma once

#include <string>
#include <vector>

#include "ir/graph.h"
#include "passes/strategy_options.h"
#include "tensor/device.h"

namespace trireme::passes {

/// What became of one node with float operands.
struct PrecisionRow {
  std::string op, from;
  bool is_low = false;  ///< its results are 16-bit
  std::string why;
};

struct PrecisionReport {
  std::vector<PrecisionRow> rows;
  size_t casts = 0;         ///< cast nodes added
  size_t weight_casts = 0;  ///< of them: a weight, once for all its readers
  /// One line an op and reason, with how often: "linear x 24: bf16: product, sums in f32".
  std::string text() const;
};

/// Rewrites a forward graph of f32 values with static shapes, before it is differentiated (the gradient of a
/// cast is a cast, so gradients of weights arrive in f32). By op:
///   products (linear, matmul, convolutions, attention's q, k and v)  operands cast, result 16-bit, sums in
///   f32 exact to follow (moves, sums of two, activations, max pools)  16-bit where all their operands are
///   batch norm of a batch  16-bit where x is; scale, bias and statistics f32
///   statistics, sums over many, losses, exp and log, and the rest  f32
/// fp8 lowers to bf16 and marks linear products (attribute float8) for lower_float8, but those that no other
/// product follows (scores of a vocabulary or of classes) unless fp8_last.
/// A weight is read through one cast; graph outputs keep their types. PyTorch's autocast makes the same
/// graph.
PrecisionReport lower_precision(ir::Graph& graph, const PrecisionOptions& options);

/// Casts around nodes with 16-bit operands or results that no kernel of `device` takes as they are (or only a
/// reference kernel, where f32 has a better one): they compute in f32 and round once, as a kernel that
/// converts inside would, but readers share casts and the memory planner sees them. Run on the graph of a
/// whole step. Returns how many nodes it changed.
size_t widen_unsupported(ir::Graph& graph, tensor::DeviceKind device);

/// The last pass over casts. A 16-bit value that is widened for readers far apart (forward and backward) is
/// widened for each, so that 16 bits are kept between them; and where f32 elements were rounded without loss
/// (a rectifier of widened values), near readers read them as they are. Changes no bit. Returns how many
/// operands it changed.
size_t localise_casts(ir::Graph& graph);

}  // namespace trireme::passes
