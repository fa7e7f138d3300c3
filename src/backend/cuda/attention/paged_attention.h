// Attention of new tokens over keys and values in pages, and the writing of these.
#pragma once

#include <cstdint>

#include "tensor/device.h"
#include "tensor/dtype.h"

namespace trireme::cuda {

/// Sequence s has rows starts[s] .. starts[s + 1] of q, its last tokens of lengths[s]; row i of n sees its
/// first lengths[s] - n + i + 1 keys. Rows behind the last sequence's give 0. q, y [rows, heads, dim]; pages
/// [pages, kv_heads, page_tokens, row], a row dim elements or, in 8 bits, codes and their scale; table
/// [sequences, most_pages].
struct PagedAttentionArgs {
  tensor::DType type = tensor::DType::bf16;       ///< of q and y: f32, bf16 or f16
  tensor::DType page_type = tensor::DType::bf16;  ///< the same, 16 bits under f32 queries, or codes
  const void *q = nullptr, *k_pages = nullptr, *v_pages = nullptr;
  const int32_t *table = nullptr, *lengths = nullptr, *starts = nullptr;
  void* y = nullptr;
  int64_t rows = 0, sequences = 0, heads = 1, kv_heads = 1, dim = 0;
  int64_t pages = 0, page_tokens = 16, most_pages = 0;
  int64_t window = 0;            ///< keys that a query sees, its own among them; 0: all before it
  float scale = 1, softcap = 0;  ///< scores become cap tanh(score / cap); 0: off
  void* workspace = nullptr;
  int64_t* fault = nullptr;  ///< pages out of range are reported and not read
  int64_t step = 0;
};
inline constexpr int64_t kMostPagedDim = 256;
/// Sequences of so many new tokens are split over parts of their keys; those of more are taken in tiles.
inline constexpr int64_t kFewRows = 4;

int64_t paged_attention_workspace_bytes(const PagedAttentionArgs& args);
/// Sums and softmax in f32, in an order that neither the launch nor other sequences change. Decoding reads 2
/// kv_heads dim sizeof(T) bytes a token once for up to 4 query vectors of a key head.
void paged_attention(tensor::Stream& stream, const PagedAttentionArgs& args);

/// Writes keys and values [tokens, kv_heads, dim] to places slots[token] of the pages; below 0: nowhere.
struct KvAppendArgs {
  tensor::DType type = tensor::DType::bf16;       ///< f32, bf16 or f16
  tensor::DType page_type = tensor::DType::bf16;  ///< one of these, i8 or f8e4m3fn
  const void *keys = nullptr, *values = nullptr;
  const int32_t* slots = nullptr;
  void *k_pages = nullptr, *v_pages = nullptr;
  int64_t tokens = 0, kv_heads = 1, dim = 0, pages = 0, page_tokens = 16;
  int64_t* fault = nullptr;
  int64_t step = 0;
};
void kv_append(tensor::Stream& stream, const KvAppendArgs& args);

}  // namespace trireme::cuda
