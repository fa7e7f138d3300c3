// The forms in which exporters write transformer blocks, gathered back into one op each.
#pragma once

#include <string>
#include <vector>

#include "ir/graph.h"

namespace trireme::passes {

/// x * 0.5 * (1 + erf(x / sqrt 2)) and its tanh form in any association -> gelu; x * sigmoid(x) -> swish;
/// x * clip(x + 3, 0, 6) / 6 and x * hard_sigmoid(x) -> hard_swish.
size_t gather_activations(ir::Graph& graph);

/// (x - mean) / sqrt(var + eps) * scale + bias over the last axis, or over the channels of images ->
/// layer_norm, also as x g + (bias - mean g); x / sqrt(mean(x^2) + eps) * scale -> rms_norm. Scale and bias
/// may be absent. An instance norm of channels in groups, with a scale and an offset of each channel ->
/// group_norm.
size_t gather_norms(ir::Graph& graph);

/// exp(x - max) / sum over one axis -> softmax.
size_t gather_softmax(ir::Graph& graph);

/// softmax(q k' * scale + masks) v of heads or of none, and ONNX Attention that has no cache ->
/// attention_bsnd.
size_t gather_attention(ir::Graph& graph);

/// What gather_attention leaves of a graph: for each product over a softmax a line with its source and the
/// part of the pattern that did not fit.
std::vector<std::string> attention_misses(const ir::Graph& graph);

/// attention_bsnd of three parts of one projection -> attention_qkv of the projection: no part is copied.
size_t pack_attention(ir::Graph& graph);

/// attention_bsnd of three `linear` of one value with constant weights -> of the parts of one linear, whose
/// weight is a `concat` of theirs, for pack_attention to take. Each result is the same sum. Whoever runs the
/// graph computes the concat once (engine::join_weights).
size_t join_projections(ir::Graph& graph);

}  // namespace trireme::passes
