// Cross entropy over classes that ranks split: the form of the loss that the partition pass can cut.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "ir/graph.h"
#include "tensor/shard.h"

namespace trireme::passes {

/// Mesh axes, in mesh order, on which dimension `dim` of a value is split as far as the placements of named
/// values and the ops between show: through products, casts, reshapes and elementwise ops.
std::vector<size_t> split_axes(const ir::Graph& graph, ir::ValueId id, size_t dim,
                               const std::map<std::string, tensor::Shard>& placed);

/// Replaces every cross_entropy whose scores will be split by class by nodes that the partition pass cuts:
///
///   maxima, sums = cross_entropy_part(scores, target)   one pass over each rank's classes
///   largest = reduce_max(maxima)                        all-reduced: one number a row
///   totals = cross_entropy_total(maxima, sums, largest) all-reduced: two numbers a row, three when smoothing
///   loss, lse, count, correct = cross_entropy_join(largest, totals, target)
///
/// Embeddings and cross_entropy_grad need no other form: their cut rules have rows and classes, which may be
/// split unevenly; nothing is padded. Runs on the whole graph, sorted before and after, shapes static; the
/// graph's results stay what they were. Returns how many losses it replaced. Contract C4.
size_t split_classes(ir::Graph& graph, const std::map<std::string, tensor::Shard>& placed,
                     const tensor::MeshShape& mesh);

}  // namespace trireme::passes
