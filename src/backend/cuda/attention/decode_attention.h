// A step of decoding between its products: new queries and keys are rotated, keys and values appended to
// their pages, and the queries attend.
#pragma once

#include "backend/cuda/attention/paged_attention.h"

namespace trireme::cuda {

/// Queries, keys and values [rows, heads or kv_heads, dim] of attention.type as the products gave them; keys
/// and values go to places slots[row] of the pages, below 0: nowhere. `attention.k_pages` and `v_pages` are
/// written before they are read. cosine, sine [angle_rows, rotated / 2], of the queries' type or f32; a row's
/// is positions[row], clamped.
struct DecodeAttentionArgs {
  PagedAttentionArgs attention;
  const void *keys = nullptr, *values = nullptr;
  const int32_t* slots = nullptr;
  const void *cosine = nullptr, *sine = nullptr;
  const int64_t* positions = nullptr;
  int64_t angle_rows = 0, rotated = 0;  ///< channels that rotate; 0: none do, and there are no angles
  bool interleaved = false, angles_f32 = false;
};

int64_t decode_attention_workspace_bytes(const DecodeAttentionArgs& args);
/// As rotation, append and paged_attention() one after another, in two launches while no sequence has more
/// than kFewRows new tokens.
void decode_attention(tensor::Stream& stream, const DecodeAttentionArgs& args);

}  // namespace trireme::cuda
