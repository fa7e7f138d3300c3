// Data parallelism and ZeRO on a rank's step graph: sums over micro-batches and ranks, parts of parameters.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "passes/train/train.h"

namespace trireme::passes {

/// The dimension of a parameter (local extents, after tensor parallelism) that ZeRO cuts over `ranks`: that
/// of its norm blocks if they divide, so that the norm keeps its bits, else the first that divides; -1: none,
/// it stays replicated. Dimensions that `taken` splits in sections are left alone.
int zero_dim(const tensor::Dims& dims, const tensor::Shard& taken, int ranks);

/// Something that a step sums over its micro-batches: a gradient, or the statistics of a batch norm.
struct StepSum {
  std::string name;
  ir::ValueId value;        ///< of this micro-batch; becomes the sum
  int dim = -1;             ///< above -1: each rank of dp keeps its part along it
  bool is_gradient = true;  ///< else it is known after the forward pass: it waits for no gradient
  /// On each rank of dp before it is reduced: a partial sum, or the ranks' own statistics.
  tensor::Placement unreduced = tensor::Placement::partial_sum();
};

struct StepSums {
  std::vector<int> coordinates;  ///< of this rank on graph.mesh
  size_t micro_batches = 1;      ///< of this rank
  bool is_last = true;           ///< this is the program of the last of them: the sums are complete
  bool reduce_each = false;      ///< ZeRO 2, 3: ranks reduce after every micro-batch and keep their parts
  /// The sums are completed in a graph of their own (`is_last`), whose values then are the lowest partial
  /// sums that hold something, lowest_sum(); all micro-batches are added to partial sums before.
  bool is_apart = false;
  int64_t bucket_bytes = 25 << 20;  ///< of a bucket, or an eighth of all if that is less
};

/// Replaces the values by their sums over the step, in the order of the tree T(0, n) of comm/communicator.h;
/// of a program that is not the last, adds them to the partial sums: states `<name>.sum0`, `.sum1`, ... each
/// the sum of a run of 2^i micro-batches. Ranks own runs of micro-batches, or, if they reduce each, every
/// dp-th. Values come in the order in which the backward pass completes them; consecutive ones that are
/// reduced alike share a bucket.
void add_step_sums(ir::Graph& graph, std::vector<StepSum>& sums, const StepSums& how);

/// The state that holds the last micro-batches of a step whose sums are completed apart: the lowest partial
/// sum.
std::string lowest_sum(const std::string& name, size_t micro_batches);

/// Numbers the parameters by their first reader: [i] of the i-th of `params`.
std::vector<size_t> first_uses(const ir::Graph& graph, const std::vector<ir::ValueId>& params);

/// A parameter of which a rank of dp updates a part.
struct ZeroParam {
  ir::ValueId param;  ///< the state as the forward pass reads it, whole over dp
  int dim = 0;
};

/// A state that takes the place of a parameter, and its 16-bit copy where there is one.
struct ReadParam {
  ir::ValueId param, copy = ir::kNoValue;
};
/// ZeRO 3: makes the states this rank's parts; readers get them gathered. Where all of them read 16 bits
/// through casts, what is gathered is the state `<name>.<type>`, this rank's part of the copy. Buckets of
/// about `bucket_bytes` of consecutive readers. Returns the new states.
std::vector<ReadParam> gather_params(ir::Graph& graph, const std::vector<ZeroParam>& params,
                                     const std::vector<int>& coordinates, int64_t bucket_bytes);
/// After recomputation: what backward readers would keep gathered since the forward pass is gathered for them
/// again. Returns how many buckets were.
size_t gather_again(ir::Graph& graph);

/// What reads a parameter by casts to 16 bits gets the state `<name>.<type>`, whole over dp. With a dimension
/// that ZeRO 1 and 2 cut (`param.dim` above -1) casts must be all that reads it, and the state itself becomes
/// this rank's part of the f32 master. Returns the master, and the copy if there is one.
ReadParam read_low_copy(ir::Graph& graph, const ZeroParam& param);

/// ZeRO 1 and 2: this rank's part of a whole state, to be updated.
ir::ValueId own_part(ir::Graph& graph, const ZeroParam& param, const std::vector<int>& coordinates);
/// A whole state and the new content of this rank's part of it.
struct NewPart {
  ir::ValueId state, part;
  int dim = 0;
};
/// Gathers the new parts, of their states' type, into the states, in buckets.
void gather_updates(ir::Graph& graph, const std::vector<NewPart>& parts, const std::vector<int>& coordinates,
                    int64_t bucket_bytes);

/// Moves nodes from `first` on to right behind the last of their operands' producers, keeping their order, so
/// that they start and free memory as early as they can. `graph` needs a sort() then.
void hoist(ir::Graph& graph, size_t first);

}  // namespace trireme::passes
