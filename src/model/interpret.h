// Runs a graph node by node: slow and simple, independent of passes and programs. For tests.
#pragma once

#include <vector>

#include "base/threads/thread_pool.h"
#include "ops/table.h"

namespace trireme::model {

/// The outputs of `g` for inputs in the order of g.inputs().
inline std::vector<tensor::Tensor> interpret(const ir::Graph& g, const std::vector<tensor::Tensor>& inputs) {
  base::ThreadPool pool(2);
  std::vector<tensor::Tensor> values(g.values().size());
  for (size_t i = 0; i < values.size(); ++i) values[i] = g.values()[i].data;
  for (size_t i = 0; i < inputs.size(); ++i) values[index(g.inputs()[i])] = inputs[i];
  for (const ir::Node& node : g.nodes()) {
    std::vector<tensor::Tensor> in;
    for (ir::ValueId id : node.in) in.push_back(id == ir::kNoValue ? tensor::Tensor() : values[index(id)]);
    const auto out = ops::evaluate(*node.op, node.attrs, in, node.out.size(), pool);
    for (size_t i = 0; i < out.size(); ++i) {
      if (node.out[i] != ir::kNoValue) values[index(node.out[i])] = out[i];
    }
  }
  std::vector<tensor::Tensor> results;
  for (ir::ValueId id : g.outputs()) results.push_back(values[index(id)]);
  return results;
}

}  // namespace trireme::model
