// libFuzzer entry: bytes that import as an ONNX model must also pass, compile and run on tiny shapes, or give
// a clear error.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>

#include "engine/session/session.h"
#include "model/onnx/import.h"

namespace {

using namespace trireme;

/// Symbolic extents become 2; models that declare large inputs are not run.
bool tiny_shapes(const ir::Graph& graph, std::vector<tensor::Dims>& shapes) {
  for (ir::ValueId id : graph.inputs()) {
    const tensor::Shape& declared = graph.type(id).shape;
    tensor::Dims dims;
    for (const tensor::Dim& d : declared.dims()) dims.push_back(d.is_static() ? d.value() : 2);
    if (!declared.has_rank() || tensor::element_count(dims) > 4096) return false;
    shapes.push_back(std::move(dims));
  }
  return true;
}

/// Loops may legitimately run forever.
bool has_control(const ir::Graph& graph) {
  return std::any_of(graph.nodes().begin(), graph.nodes().end(),
                     [](const ir::Node& node) { return node.op->schema.is_control; });
}

void try_model(const std::shared_ptr<std::string>& bytes) {
  constexpr int64_t kMaxBytes = 16 << 20;
  constexpr double kMaxFlop = 1e7;
  model::Model model = model::onnx::import_onnx(*bytes, bytes, "");
  auto prepared =
      std::make_shared<engine::PreparedModel>(std::move(model.graph), passes::PassOptions{.verify = true});
  std::vector<tensor::Dims> shapes;
  if (!tiny_shapes(prepared->graph(), shapes)) return;
  engine::SessionOptions options{.threads = 1, .memory_bytes = kMaxBytes};
  options.passes.verify = true;
  engine::Session session(prepared, options);
  const compile::Program& program = session.prepare(shapes);
  if (program.memory.sum_bytes > kMaxBytes || program.cost().flop > kMaxFlop || has_control(session.graph()))
    return;
  std::vector<tensor::Tensor> inputs;
  for (size_t i = 0; i < shapes.size(); ++i) {
    inputs.push_back(
        tensor::Tensor::zeros(session.graph().type(session.graph().inputs()[i]).dtype, shapes[i]));
  }
  session.run(inputs);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    try_model(std::make_shared<std::string>(reinterpret_cast<const char*>(data), size));
  } catch (const base::Error& e) {
    if (e.code() == base::ErrorCode::internal) {
      std::fprintf(stderr, "internal: %s\n", e.message().c_str());
      __builtin_trap();
    }
  }
  return 0;
}
