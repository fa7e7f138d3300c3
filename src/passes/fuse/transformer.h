// The forms in which exporters write transformer blocks, gathered back into one op each.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "ir/graph.h"

namespace trireme::passes {

/// The number of operands of attention_bsnd up to the mask.
inline constexpr size_t kMaskEnd = 4;

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

/// Explains why gather_attention left products over a softmax as they are: a line for each, with its source
/// layer and the part of the pattern that did not match.
std::vector<std::string> attention_misses(const ir::Graph& graph);

/// Rewrites attention_bsnd of three parts of one projection as attention_qkv of the whole, so that no part is
/// copied.
size_t pack_attention(ir::Graph& graph);

/// If the operands of an attention_bsnd are three `linear` of one value with constant weights, replaces these
/// by one linear whose weight is a `concat` of theirs; pack_attention then applies. Each element is the same
/// sum as before. The lowering evaluates the concat once (lower/joined_weights.h).
size_t join_projections(ir::Graph& graph);

}  // namespace trireme::passes
