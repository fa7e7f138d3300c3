// Control flow: runs `if`, `loop` and `scan` by running their subgraphs.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "ir/graph.h"

namespace trireme::engine {

class GraphRunner;
class LoopRunner;
struct RunnerContext;

/// Runners of the subgraphs of one program's control nodes, made when first needed.
struct SubgraphCache {
  std::map<const ir::Graph*, std::unique_ptr<GraphRunner>> branches;
  std::map<const ir::Graph*, std::unique_ptr<LoopRunner>> loops;

  SubgraphCache();
  ~SubgraphCache();
  int64_t folded_bytes() const;
};

/// Runs a control node. Operands: those of the ONNX operator, then attr `captures` outer values, which the
/// subgraphs take as their last inputs. Throws invalid_argument for a trip count or body that does not fit.
std::vector<tensor::Tensor> run_control(const ir::Node& node, const std::vector<tensor::Tensor>& in,
                                        SubgraphCache& cache, RunnerContext& context);

}  // namespace trireme::engine
