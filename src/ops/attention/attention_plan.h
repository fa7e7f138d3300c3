// How an attention node lays out its operands: one description for ONNX Attention (3-D, 4-D, cached) and
// attention_bsnd.
#pragma once

#include <array>
#include <initializer_list>

#include "ir/kernel.h"

namespace trireme::ops {

/// Where element (batch, position, head, channel) of a projection lies; channels are contiguous.
struct HeadStrides {
  int64_t batch = 0, seq = 0, head = 0;
};

/// Strides of a mask over [batch, head, query, key]; key is contiguous up to `keys`, beyond that keys are
/// excluded.
struct MaskStrides {
  bool given = false;
  bool keeps = false;  ///< boolean or key-padding mask: non-zero keeps; else added to the scores
  int64_t batch = 0, head = 0, query = 0, keys = 0;
};

struct AttentionPlan {
  int64_t batch = 1, heads = 1, kv_heads = 1, queries = 0, past = 0, fresh = 0;
  int64_t head_dim = 0, value_dim = 0;
  HeadStrides q, k, v, y;
  std::array<size_t, 3> operand{0, 1, 2};  ///< which operands hold q, k, v
  std::array<int64_t, 3> offset{};         ///< elements before the first of q, k, v in theirs
  size_t mask_operand = 3;
  size_t sink_operand = 0;  ///< [heads]: a score of each head that takes its share and gives nothing; 0: none
  bool gives_lse = false;   ///< result 1 is the log-sum-exp [batch, heads, queries], not the present keys
  MaskStrides mask;
  double scale = 1, softcap = 0;
  bool causal = false;
  int64_t causal_offset = 0;
  int64_t left = -1, right = -1;  ///< sliding window around the query's own position; -1 = open
  int64_t qk_mode = 0;            ///< 0 scores, 1 after softcap, 2 after the mask, 3 probabilities
  bool has_lengths = false;       ///< operand 6: valid keys of each batch entry
  int64_t keys() const { return past + fresh; }
};

/// Plan of ONNX Attention with static shapes. Throws invalid_argument for shapes that do not fit together.
AttentionPlan plan_attention(const ir::NodeView& node);

/// Refuses unless the operands have the type of the queries, operand 0.
ir::Refusal refuse_mixed(const ir::NodeView& node, std::initializer_list<size_t> operands);

/// Operands of attention_bsnd behind queries, keys and values.
inline constexpr size_t kBsndMask = 3, kBsndSinks = 4;

/// Plan of attention_bsnd.
AttentionPlan plan_attention_bsnd(const ir::NodeView& node, size_t mask_operand = kBsndMask);

/// Plan of attention_qkv: one operand [batch, seq, (heads + 2 kv_heads) * channels].
AttentionPlan plan_attention_qkv(const ir::NodeView& node, size_t mask_operand = 1);

/// How a node of attention_bsnd_grad or attention_qkv_grad sees its operands and results; q, k, v as forward.
struct AttentionGradPlan {
  AttentionPlan forward;
  size_t y, lse, dy;               ///< operands
  std::array<size_t, 3> result{};  ///< which results hold dq, dk, dv, laid out like q, k, v
};
AttentionGradPlan plan_attention_bsnd_grad(const ir::NodeView& node);
AttentionGradPlan plan_attention_qkv_grad(const ir::NodeView& node);

/// Result types of ONNX Attention: y, present_key, present_value, scores.
std::vector<tensor::TensorType> infer_attention(const ir::NodeView& node);

}  // namespace trireme::ops
