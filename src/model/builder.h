// Builds graphs by op name: the vocabulary that model builders share.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "ir/graph.h"

namespace trireme::model {

/// Adds nodes to a graph by the internal names of ops. `scope` (see within) becomes the `from` of each node.
class Builder {
 public:
  explicit Builder(ir::Graph& graph) : graph_(graph) {}

  ir::Graph& graph() { return graph_; }
  /// The same builder whose nodes say they come from `scope`.
  Builder within(std::string scope) const;

  ir::ValueId op(std::string_view name, std::vector<ir::ValueId> in, ir::Attrs attrs = {});
  std::vector<ir::ValueId> ops(std::string_view name, std::vector<ir::ValueId> in, ir::Attrs attrs,
                               size_t out_count);

  ir::ValueId param(std::string name, tensor::Tensor data) {
    return graph_.add_param(std::move(name), std::move(data));
  }
  ir::ValueId ints(const std::vector<int64_t>& values);  ///< i64 [n]
  ir::ValueId scalar(float value);                       ///< f32 []

  /// y = x weight^T + bias: x [..., in], weight [out, in], bias [out] -> [..., out].
  ir::ValueId linear(ir::ValueId x, ir::ValueId weight, ir::ValueId bias);
  ir::ValueId reshape(ir::ValueId x, const std::vector<int64_t>& shape);
  ir::ValueId transpose(ir::ValueId x, const std::vector<int64_t>& perm);

 private:
  ir::Graph& graph_;
  std::string scope_;
};

}  // namespace trireme::model
