// Control flow: runs `if`, `loop` and `scan` by running their subgraphs.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "ir/graph.h"

namespace trireme::engine {

class GraphRunner;
struct RunnerContext;

/// Runners of the subgraphs of one program's control nodes, made when first needed.
using SubgraphCache = std::map<const ir::Graph*, std::unique_ptr<GraphRunner>>;

/// Runs a control node. Operands: those of the ONNX operator, then attr `captures` outer values, which the
/// subgraphs take as their last inputs. Throws invalid_argument for a trip count or body that does not fit.
std::vector<tensor::Tensor> run_control(const ir::Node& node, const std::vector<tensor::Tensor>& in,
                                        SubgraphCache& cache, RunnerContext& context);

}  // namespace trireme::engine
