// Cross entropy over classes that ranks split: the form of the loss that the partition pass can cut.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "ir/graph.h"
#include "tensor/shard.h"

namespace trireme::passes {

/// A dimension of a value.
struct ValueDim {
  ir::ValueId value = ir::kNoValue;
  size_t dim = 0;
};
/// The param, state, input or constant whose dimension becomes dimension `dim` of a value: through products
/// (columns of the weight), casts, reshapes and elementwise ops. kNoValue where it comes from elsewhere.
ValueDim root_of_dim(const ir::Graph& graph, ir::ValueId id, size_t dim);

/// Mesh axes, in mesh order, on which the root of a dimension is split.
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
