// What adapters of low rank add to the rows of a product, each row by an adapter of its own.
#pragma once

#include <cstdint>

#include "base/threads/thread_pool.h"

namespace trireme::cpu {

/// y[row] += (x[row] a[s]') b[s] with s = slots[row]; rows of a slot below 0, or whose adapter has rank 0,
/// keep their bits.
struct AdapterRows {
  const float* x = nullptr;        ///< [rows, in]
  const int32_t* slots = nullptr;  ///< [rows]
  const int32_t* ranks = nullptr;  ///< [slot_count]: so many rows of a and b count, the others are not read
  const float* a = nullptr;        ///< [slot_count, most_rank, in]
  const float* b = nullptr;        ///< [slot_count, most_rank, out]
  float* y = nullptr;              ///< [rows, out]
  int64_t rows = 0, in = 0, out = 0, slot_count = 0, most_rank = 0;
  void* workspace = nullptr;
};

int64_t adapter_rows_workspace_bytes(const AdapterRows& call);

/// What is wrong with slots and ranks, or null.
const char* adapter_fault(const AdapterRows& call, int64_t* value);

/// Sums in f32, each the same chain of multiply-adds whatever the other rows and the team: a row's bits do
/// not depend on its mates. Rows of one adapter are taken together, so that it is read once for four of them.
/// Takes what adapter_fault() finds nothing wrong with. Flop: 2 rank (in + out) a row that has an adapter,
/// else none.
void adapter_rows(const AdapterRows& call, base::ThreadPool& pool);

}  // namespace trireme::cpu
