// A bucket's graph with its products on 16-bit operands.
#include "engine/low_precision.h"

#include "passes/casts.h"

#include "ops/table.h"

namespace trireme::engine {
namespace {

using tensor::Tensor;

/// The weight in the cast's type; lives as long as a program reads it.
Tensor rounded(const ir::Node& cast, tensor::DType to, const Tensor& weight, base::SharedCache& packs) {
  const std::string format = base::concat("rounded ", tensor::name_of(to));
  const auto shared = packs.get<Tensor>(ir::pack_key(weight, format), [&] {
    base::ThreadPool pool(1);
    return std::make_shared<const Tensor>(ops::evaluate(*cast.op, cast.attrs, {weight}, 1, pool)[0]);
  });
  const std::span<const std::byte> bytes(shared->raw(), static_cast<size_t>(shared->bytes()));
  return Tensor::view(shared->dtype(), shared->dims(), bytes, shared);
}

void round_weights(ir::Graph& graph, base::SharedCache& packs) {
  const size_t count = graph.nodes().size();
  for (size_t n = 0; n < count; ++n) {
    const ir::Node node = graph.nodes()[n];
    if (node.op == nullptr || node.op_name() != "cast") continue;
    const Tensor* weight = graph.known(node.in[0]);
    if (weight == nullptr || weight->dtype() != tensor::DType::f32 || weight->elements() == 0) continue;
    Tensor small = rounded(node, graph.type(node.out[0]).dtype, *weight, packs);
    graph.erase(ir::NodeId(static_cast<uint32_t>(n)));
    graph.replace_uses(node.out[0], graph.add_constant(std::move(small), graph.value(node.out[0]).name));
  }
  graph.sort();
}

}  // namespace

void lower_for_inference(ir::Graph& graph, passes::Precision precision, tensor::DeviceKind device,
                         base::SharedCache& packs) {
  if (precision == passes::Precision::f32) return;
  passes::lower_precision(graph, {.compute = precision});
  graph.sort();
  round_weights(graph, packs);
  passes::widen_unsupported(graph, device);
  passes::localise_casts(graph);
  passes::absorb_casts(graph, device);
  graph.sort();
}

}  // namespace trireme::engine
