// Fused attention softmax(q k^T * scale + mask) v on strided views, blockwise, without materialising the
// scores.
#pragma once

#include <cstdint>

#include "base/threads/thread_pool.h"

namespace trireme::cpu {

/// A view of [batch, seq, heads, head_dim] floats with head_dim contiguous: the projection's output as it
/// lies.
struct AttentionView {
  const float* data;
  int64_t stride_batch;
  int64_t stride_seq;
  int64_t stride_head;
};

/// Additive mask of shape [batch, heads, query, key] with key contiguous; a stride of 0 broadcasts. A key
/// padding mask [batch, key] is stride_head = stride_query = 0: the cheap form.
struct AttentionMask {
  const float* data = nullptr;  // 0 keeps, -inf excludes
  int64_t stride_batch = 0;
  int64_t stride_head = 0;
  int64_t stride_query = 0;
};

struct Attention {
  AttentionView q;  // [batch, queries, heads, head_dim]
  AttentionView k;  // [batch, keys, kv_heads, head_dim]
  AttentionView v;  // [batch, keys, kv_heads, value_dim]
  float* out;       // [batch, queries, heads, value_dim], dense
  int64_t batch = 1;
  int64_t queries = 0;
  int64_t keys = 0;
  int64_t heads = 1;
  int64_t kv_heads = 1;  // divides heads; query head h reads kv head h / (heads / kv_heads)
  int64_t head_dim = 0;
  int64_t value_dim = 0;
  float scale = 1.0f;
  AttentionMask mask;
  bool causal = false;           // query i sees keys 0 .. i + causal_offset
  int64_t causal_offset = 0;     // keys before the first query, e.g. the cached ones
  int64_t left = -1;             // query i sees keys from i + causal_offset - left on; -1: all
  float softcap = 0;             // scores become cap tanh(score / cap) before the mask; 0: off
  float* log_sum_exp = nullptr;  // [batch, heads, queries] of the masked scores, or null; -inf: saw no key
};

/// Largest head_dim and value_dim of `attention`.
constexpr int64_t kAttentionMaxDim = 256;

/// Computes attention in f32 with an online softmax over blocks of keys. A query whose keys are all excluded
/// gives 0. Results depend neither on the number of threads nor on the rest of the batch. Flop: 2 batch heads
/// queries keys (head_dim + value_dim) + 20 per score; bytes: q, k, v and out once from memory (k and v again
/// from L2 for each block of queries). Throws invalid_argument if dims exceed kAttentionMaxDim or kv_heads
/// does not divide heads.
void attention(const Attention& args, base::ThreadPool& pool);

}  // namespace trireme::cpu
