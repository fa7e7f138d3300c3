// A forward graph as the pipeline sees it: the row of nodes that cuts go through, and what crosses each
// place.
#pragma once

#include <vector>

#include "ir/graph.h"
#include "passes/pipeline/pipeline.h"

namespace trireme::passes {

/// How simple a cut is. stream: one value crosses, which is read several times (a residual stream) or by a
/// weight matrix: no fusion of later passes is torn. single: one value crosses. never: the new content of a
/// state would cross, which lies where the state does.
enum class CutLevel : uint8_t { stream, single, any, never };

struct Crossing {
  CutLevel level = CutLevel::any;
  size_t values = 0;
  int64_t bytes = 0;
};

/// Activations are what depends on inputs and weights. Values of inputs alone or of weights alone float: they
/// are computed wherever they are read.
class Spine {
 public:
  /// `graph` is sorted and outlives the spine.
  explicit Spine(const ir::Graph& graph);

  const ir::Graph& graph;
  std::vector<size_t> nodes;     ///< node indices of activations that outputs need, in order
  std::vector<size_t> weighted;  ///< positions in `nodes` of those that read weights

  bool is_activation(ir::ValueId id) const { return depends_[index(id)] == (kInput | kWeight); }
  /// Params and states that a node reads, directly or through floating values.
  std::vector<ir::ValueId> weights_of(const ir::Node& node) const;
  /// What crosses the place before position `at` of `nodes`.
  const Crossing& crossing(size_t at) const { return crossings_[at]; }
  /// The best place to cut between weighted nodes j - 1 and j.
  size_t window(size_t j) const;

  /// Positions in `nodes` at which parts 1, 2, … begin. Throws internal if the cut is of another graph.
  std::vector<size_t> begins(const PipelineCut& cut) const;
  /// The part of every activation node, updates of states included; no part for floating nodes.
  std::vector<size_t> part_of_nodes(const PipelineCut& cut) const;

  static constexpr size_t kFloating = ~size_t{0};

 private:
  static constexpr char kInput = 1, kWeight = 2;
  void find_dependences();
  void find_nodes();
  void find_crossings();
  std::vector<char> find_contents() const;
  void collect_weights(ir::ValueId id, std::vector<ir::ValueId>& out) const;

  std::vector<char> depends_;        ///< by value: kInput, kWeight
  std::vector<char> on_spine_;       ///< by node
  std::vector<Crossing> crossings_;  ///< by position in `nodes`
};

}  // namespace trireme::passes
