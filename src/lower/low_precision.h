// Mixed precision of a bucket's graph: products read 16-bit operands, operators that would lose accuracy stay
// f32.
#pragma once

#include "base/memory/shared_cache.h"
#include "ir/graph.h"
#include "passes/precision/precision.h"
#include "tensor/device.h"

namespace trireme::lower {

/// Applies passes::lower_precision to a fused graph with static shapes and rounds its weights, once for a
/// model: all buckets and instances share them through `packs`. Outputs keep their types. Does nothing for
/// f32.
void lower_for_inference(ir::Graph& graph, passes::Precision precision, tensor::DeviceKind device,
                         base::SharedCache& packs);

}  // namespace trireme::lower
