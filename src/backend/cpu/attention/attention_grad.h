// The backward pass of fused attention: probabilities are computed again block by block, never stored.
#pragma once

#include <cstddef>

#include "backend/cpu/attention/attention_encoder.h"

namespace trireme::cpu {

/// A result laid out like the operand it belongs to, channels contiguous.
struct AttentionResult {
  float* data;
  int64_t stride_batch;
  int64_t stride_seq;
  int64_t stride_head;
};

struct AttentionGrad {
  Attention forward;         // as it ran; `out` and `log_sum_exp` are not written
  const float* y;            // [batch, queries, heads, value_dim], what forward gave
  const float* log_sum_exp;  // [batch, heads, queries], what forward gave
  const float* dy;           // like y
  AttentionResult dq, dk, dv;
  float* dscores = nullptr;  // [batch, heads, queries, keys], gradient of scores with their mask; or null
};

size_t attention_grad_workspace_bytes(const Attention& forward, int threads);

/// dq, dk, dv of softmax(q k^T scale + mask) v, in f32: p = exp(s - log_sum_exp), ds = p (dy v^T - <dy, y>).
/// One task per batch entry and key head walks the queries in order, so no result depends on the team. Five
/// products where forward has two; causal blocks that are masked are skipped. Throws like `attention`.
void attention_grad(const AttentionGrad& args, void* workspace, base::ThreadPool& pool);

}  // namespace trireme::cpu
