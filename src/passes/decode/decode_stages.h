// A language model in the form for decoding cut into the stages of a pipeline, each a form of its own.
#pragma once

#include <string>
#include <vector>

#include "passes/decode/decode.h"

namespace trireme::passes {

/// Stages 0, 1, … of `form`, before other passes, in symbolic extents. Each has the layers whose keys and
/// values it keeps, by their numbers in the whole model, and the weights that it reads; inputs are those that
/// it reads, in the order of DecodeInput, then what arrives; of the room for adapters it has the modules
/// whose products it computes. The first one takes the tokens, the last one gives the logits. `cuts`: layers
/// that stages 1, 2, … begin with; empty: the costliest stage is made as cheap as it can be for a step of one
/// token, whose cost is mostly the bytes of weights. Throws invalid_argument for cuts that are not there and
/// for more stages than there are places between layers, unsupported where a later stage reads the tokens.
std::vector<DecodeGraph> cut_decode_form(const DecodeGraph& form, int stages,
                                         const std::vector<std::string>& cuts = {});

}  // namespace trireme::passes
