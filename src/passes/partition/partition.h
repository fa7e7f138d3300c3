// From a graph in global shapes to the graph of one rank: placements by propagation, collectives where a
// value is held otherwise than its reader needs it.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "ir/graph.h"

namespace trireme::passes {

struct Partitioning {
  tensor::MeshShape mesh;
  std::vector<int> coordinates;  ///< of the rank
  /// Of inputs, params, states by name; those not named are replicated. Constants are.
  std::map<std::string, tensor::Shard> placed = {};
  /// Of outputs by name; those not named become replicated. Partial: those that are made
  /// as partial sums stay so.
  std::map<std::string, tensor::Shard> outputs = {};
  /// Axes that the pass leaves alone: values are not looked at along them (dp, which
  /// passes/partition/data_parallel places).
  std::vector<std::string> untouched = {};
  /// Sequence parallel over this axis: results that would be all-reduced are reduce-scattered along dimension
  /// 1 of [batch, tokens, hidden] instead, as far as their readers allow. Empty: no.
  std::string sequence_axis = {};
};

/// The graph of the rank at `how.coordinates`: local shapes, Value::shard of every value, collectives from
/// ops/collective with the name of the layer that needs them. The graph's shapes are static. Nodes that
/// cannot be cut compute the same on every rank. Deterministic: all ranks get the same collectives in the
/// same order. Throws invalid_argument for extents that do not divide, naming the value and the axis.
ir::Graph partition(const ir::Graph& global, const Partitioning& how);

/// Placements of all values of a rank's graph inferred anew from those of inputs, params, states and
/// constants (Value::shard). Throws invalid_argument naming the node, its layer and the missing or
/// superfluous step where the types do not fit: a partial value in an op that is not linear in it or in an
/// optimizer's update, a reduction of what is whole already, ranks' own values mixed with common ones, a
/// dropout whose mask would differ between replicas, a state that would get another placement than it has.
std::vector<tensor::Shard> infer_shards(const ir::Graph& local);

}  // namespace trireme::passes
