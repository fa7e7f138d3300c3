// The values of a graph along one mesh axis: in which placements this rank holds them, and the collectives
// that make another placement of one.
#pragma once

#include <array>
#include <vector>

#include "passes/partition/partition.h"
#include "passes/partition/partition_parts.h"

namespace trireme::passes {

/// Half of a training step that a node belongs to: what depends on the weight of the loss is backward.
enum class Half : uint8_t { forward, backward };

/// Costs are in bytes that one rank sends.
inline constexpr double kImpossible = 1e30;
/// A collective's latency, as bytes that could be sent meanwhile.
inline constexpr double kLatencyBytes = 2048;
/// Sums of gradients up to this size share one collective.
inline constexpr int64_t kSmallGradientBytes = 64 << 10;

/// What it costs to turn a value of `bytes` (whole) from one placement into another.
double conversion_cost(double bytes, const tensor::Placement& from, const tensor::Placement& to, int ranks);

/// Builds the rank's graph `to()` value by value. Values of `from` are named by their ids there.
class AxisValues {
 public:
  /// `halves`: of the nodes of `from`.
  AxisValues(const ir::Graph& from, const Partitioning& how, AxisRank rank, const std::vector<Half>& halves);

  const AxisRank& rank() const { return rank_; }
  ir::Graph& to() { return to_; }

  /// How the value was made; inputs, params, states as declared.
  tensor::Placement made(ir::ValueId v);
  /// Placements that cost nothing to have and that came of a reduction: what may start a cut.
  bool is_cut_along(ir::ValueId v, size_t dim);
  bool is_constant(ir::ValueId v) const;

  /// What to_placement would add, in bytes sent.
  double cost(ir::ValueId v, const tensor::Placement& wanted, Half half);
  /// The value in the placement wanted; adds at most two collectives, in the name of the reader's layer.
  ir::ValueId to_placement(ir::ValueId v, const tensor::Placement& wanted, Half half,
                           const std::string& layer);
  /// The result of a node.
  void define(ir::ValueId v, const tensor::Placement& placement, ir::ValueId local);
  /// `v` is what `same` is.
  void alias(ir::ValueId v, ir::ValueId same);
  /// Sections of a split dimension are the same on all axes that split it.
  bool fits_other_axes(ir::ValueId v, const tensor::Placement& placement) const;

 private:
  /// One form of a value.
  struct Form {
    tensor::Placement placement;
    ir::ValueId local = ir::kNoValue;
    Half half = Half::forward;
    bool is_kept = true;    ///< false: made again for the other half of the step rather than kept
    bool is_slice = false;  ///< cut out of a whole form
  };
  std::vector<Form>& forms(ir::ValueId v);
  Form declare(ir::ValueId v);
  tensor::Placement declared_placement(ir::ValueId v) const;
  const Form* find(ir::ValueId v, const tensor::Placement& p, Half half);
  ir::ValueId add(ir::ValueId v, const Form& from, const tensor::Placement& to, const std::string& layer);
  ir::Attrs conversion_attrs(ir::ValueId v, const tensor::Placement& from, const tensor::Placement& to) const;
  void set_shard(ir::ValueId v, ir::ValueId local, const tensor::Placement& p);
  double bytes(ir::ValueId v) const;
  void find_weights();
  /// A param, a state, or made of those alone (a weight in 16 bits).
  bool is_weight(ir::ValueId v) const { return index(v) < is_weight_.size() && is_weight_[index(v)] != 0; }
  /// Nodes of a half that read the value, at least 1.
  double readers(ir::ValueId v, Half half) const;

  const ir::Graph& from_;
  const Partitioning& how_;
  AxisRank rank_;
  ir::Graph to_;
  std::vector<std::vector<Form>> forms_;          ///< by value of from_; the first one is how it was made
  std::array<std::vector<uint32_t>, 2> readers_;  ///< by half, by value
  std::vector<char> is_weight_;
};

}  // namespace trireme::passes
