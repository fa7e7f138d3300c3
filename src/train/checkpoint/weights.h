// Weights between graphs, states and checkpoints, by parameter name.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "engine/train/train_session.h"
#include "ir/graph.h"
#include "model/safetensors.h"
#include "train/checkpoint/checkpoint_reader.h"

namespace trireme::train {

/// The content for a parameter, or null to keep what the graph has.
using WeightLookup = std::function<const tensor::Tensor*(const std::string& name)>;

/// The graph with the content of its params replaced (shared, not copied; f16 and bf16 are widened for params
/// of f32). Throws invalid_argument for a content of another type or shape. `replaced`, if given, counts
/// them.
ir::Graph with_weights(ir::Graph graph, const WeightLookup& lookup, size_t* replaced = nullptr);

/// Forgets the content of the params that the session trains on some rank; they keep their types.
void drop_weights(ir::Graph& graph, const engine::TrainSession& session);

/// The params that still have content after drop_weights(): those that no rank trains.
model::NamedTensors frozen_weights(const ir::Graph& graph);

/// Reads a checkpoint's tensors as they are asked for, and checks their checksums; `average`: the averaged
/// weights first (names ending in ".ema"). Optimizer states are not touched.
WeightLookup weights_of(std::shared_ptr<const CheckpointReader> checkpoint, bool average);

/// Takes start weights from a safetensors file, a checkpoint or a run directory. Throws invalid_argument if
/// no parameter of the graph is in there. `text` receives a line on how many were found.
ir::Graph start_from(ir::Graph graph, const std::string& path, std::string& text);

}  // namespace trireme::train
