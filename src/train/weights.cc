// Weights by name: replacing the content of params.
#include "train/weights.h"

#include <map>
#include <memory>

#include "base/error.h"

namespace trireme::train {

ir::Graph with_weights(ir::Graph graph, const WeightLookup& lookup, size_t* replaced) {
  for (size_t i = 0; i < graph.values().size(); ++i) {
    ir::Value& value = graph.value(ir::ValueId{static_cast<uint32_t>(i)});
    if (value.kind != ir::ValueKind::param) continue;
    const tensor::Tensor* found = lookup(value.name);
    if (found == nullptr) continue;
    base::require(found->dtype() == value.data.dtype() && found->dims() == value.data.dims(), "parameter '",
                  value.name, "' is ", value.data.type().to_string(), ", the weights hold ",
                  found->type().to_string());
    value.data = *found;
    if (replaced != nullptr) ++*replaced;
  }
  return graph;
}

WeightLookup weights_of(const Checkpoint& checkpoint, bool average) {
  auto by_name = std::make_shared<std::map<std::string, tensor::Tensor>>(checkpoint.tensors.begin(),
                                                                         checkpoint.tensors.end());
  return [by_name, average](const std::string& name) -> const tensor::Tensor* {
    auto found = average ? by_name->find(name + ".ema") : by_name->end();
    if (found == by_name->end()) found = by_name->find(name);
    return found == by_name->end() ? nullptr : &found->second;
  };
}

ir::Graph start_from(ir::Graph graph, const std::string& path, std::string& text) {
  Checkpoint source;
  if (path.ends_with(".safetensors")) {
    source.tensors = model::Safetensors::open(path).tensors();
  } else {
    source = load_checkpoint(find_checkpoint(path));
  }
  size_t found = 0, params = 0;
  graph = with_weights(std::move(graph), weights_of(source, false), &found);
  for (const ir::Value& v : graph.values()) params += v.kind == ir::ValueKind::param;
  base::require(found > 0, "'", path, "' holds no parameter of this model by name");
  text = base::concat(found, " of ", params, " parameters from '", path, "'");
  return graph;
}

}  // namespace trireme::train
