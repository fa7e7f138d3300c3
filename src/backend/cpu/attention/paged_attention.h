// Attention of a language model's new tokens over keys and values that lie in pages: decoding and prefill in
// one ragged batch.
#pragma once

#include <cstdint>

#include "backend/cpu/device/stage_loop.h"
#include "tensor/dtype.h"

namespace trireme::cpu {

/// Keys of a sequence are taken in parts of this length, whose results are joined in their order: the same
/// arithmetic whether one task walks a sequence or several share it.
inline constexpr int64_t kPagedPart = 256;
inline constexpr int64_t kPagedMaxDim = 256;

/// Sequence s has the rows starts[s] .. starts[s + 1] of q: its last tokens, of lengths[s] in all, whose keys
/// and values are in the pages already. Row i of n sees the first lengths[s] - n + i + 1 keys. Rows behind
/// the last sequence's give 0.
struct PagedAttention {
  tensor::DType type = tensor::DType::f32;        ///< of q and y: f32, bf16 or f16
  tensor::DType page_type = tensor::DType::f32;   ///< of keys and values: f32, bf16, f16, i8 or f8e4m3fn
  const void* q = nullptr;                        ///< [rows, heads, dim]
  const void *keys = nullptr, *values = nullptr;  ///< [pages, kv_heads, page_tokens] rows of row_bytes
  const int32_t* table = nullptr;                 ///< [sequences, most_pages]: pages in the order of tokens
  const int32_t *lengths = nullptr, *starts = nullptr;  ///< [sequences], [sequences + 1]
  void* y = nullptr;                                    ///< [rows, heads, dim]
  const float* sinks = nullptr;  ///< [heads] or null: one more score of each head, which has no value
  int64_t rows = 0, sequences = 0, heads = 1, kv_heads = 1, dim = 0;
  int64_t row_bytes = 0;  ///< of a key or value: dim elements; types of 8 bits have their f32 scale behind
  int64_t pages = 0, page_tokens = 16, most_pages = 0;
  int64_t window = 0;            ///< keys that a query sees, its own among them; 0: all before it
  float scale = 1, softcap = 0;  ///< scores become cap tanh(score / cap); 0: off
  void* workspace = nullptr;
};

/// What is wrong with table, lengths and starts, or null.
const char* paged_fault(const PagedAttention& args, int64_t* value);

int64_t paged_attention_workspace_bytes(const PagedAttention& args);

/// The tasks of paged_attention, for whoever has a loop of several kinds of them. Any thread may run any
/// task, each once; `args` outlives it.
class PagedLoop {
 public:
  /// For a team of `threads`: few query vectors are split by parts of their keys, whose last task joins them.
  PagedLoop(const PagedAttention& args, int threads);
  int64_t tasks() const { return first_[g_.sequences]; }
  /// The key head that a task reads.
  int64_t kv_head(int64_t task) const;
  void run(int64_t task) const;
  /// Rows behind the last sequence's become 0.
  void clear_rest() const;

 private:
  struct Job;
  void layout(bool is_split);
  Job job(int64_t task) const;
  int64_t vectors_of(int64_t s) const;
  int64_t blocks_of(int64_t s) const;
  int64_t parts_of(int64_t s) const;
  int64_t sequence_of(int64_t task) const;
  void join(const Job& job) const;

  const PagedAttention& g_;
  int64_t group_;
  int64_t *first_, *first_vector_;  // [sequences + 1]: where the tasks and states of a sequence begin
  Pending* parts_left_;             // of each block of query vectors, at the place of its first vector
  float* states_;
  bool is_split_ = false;
};

/// Sums and softmax in f32. A row's result depends on its own sequence alone: neither on other rows of the
/// batch, nor on how many new tokens come at once, nor on the number of threads. Takes what paged_fault()
/// finds nothing wrong with; heads a multiple of kv_heads, dim at most kPagedMaxDim. The team meets once.
/// Flop: 4 heads dim a row and key it sees. Bytes: the keys and values of a sequence once for every 32 query
/// vectors of a key head.
void paged_attention(const PagedAttention& args, base::ThreadPool& pool);

}  // namespace trireme::cpu
