// Mixed precision of a bucket's graph: products read 16-bit operands, operators that would lose accuracy stay
// f32.
#pragma once

#include "base/memory/shared_cache.h"
#include "ir/graph.h"
#include "passes/precision/precision.h"
#include "tensor/device.h"

namespace trireme::lower {

/// Lowers a fused graph with static shapes as passes::lower_precision says, and rounds its weights now: once
/// for a model, shared through `packs` by all buckets and instances. Results keep their types. f32: nothing.
void lower_for_inference(ir::Graph& graph, const passes::PrecisionOptions& precision,
                         tensor::DeviceKind device, base::SharedCache& packs);

}  // namespace trireme::lower
