// Gathers of table rows by index: embeddings, and gather along an axis whose slices are contiguous.
#pragma once

#include <cstdint>

#include "base/threads/thread_pool.h"

namespace trireme::cpu {

struct GatherRows {
  const void* table;  // [outer, table_rows, row_bytes]
  void* y;            // [outer, indices, row_bytes]
  int64_t outer = 1;  // 1 for an embedding
  int64_t table_rows = 0;
  int64_t row_bytes = 0;
  int64_t indices = 0;
};

/// y[o, i] = table[o, index[i]]; a negative index counts from the end. Any element type. 2 row_bytes per
/// index. Throws invalid_argument, before anything is written, if an index is outside [-table_rows,
/// table_rows).
void gather_rows(const GatherRows& args, const int64_t* index, base::ThreadPool& pool);
void gather_rows(const GatherRows& args, const int32_t* index, base::ThreadPool& pool);

struct EmbeddingSum {
  const float* tables[3];   // [rows[t], width]; the first `count` are used
  const int64_t* index[3];  // [tokens]
  int64_t rows[3];
  int count = 1;
  float* y;  // [tokens, width]
  int64_t tokens = 0;
  int64_t width = 0;
};

/// y[t] = sum over tables of table[index[t]], in table order: word + position + type embeddings in one pass.
/// 4 (count + 1) width bytes per token. Throws like gather_rows.
void embedding_sum(const EmbeddingSum& args, base::ThreadPool& pool);

struct ScatterAddRows {
  const float* dy;       // [indices, width]
  const int64_t* index;  // [indices]
  float* table;          // [table_rows, width], added to
  int64_t indices = 0;
  int64_t table_rows = 0;
  int64_t width = 0;
};

/// table[index[i]] += dy[i]: the gradient of an embedding. Each table element receives its addends in index
/// order, so the result does not depend on the number of threads: threads share the columns. 12 bytes per dy
/// element. Throws like gather_rows.
void scatter_add_rows(const ScatterAddRows& args, base::ThreadPool& pool);

}  // namespace trireme::cpu
