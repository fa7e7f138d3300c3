// Products of f32 rows with weights in blocks, and of rows rounded to 8 bits on the way.
#pragma once

#include <cstdint>
#include <span>

#include "backend/cpu/blocks/block_pack.h"
#include "backend/cpu/tiles/dense_isa.h"
#include "base/threads/thread_pool.h"

namespace trireme::cpu {

/// y [m, n] = x [m, k] w' + bias [n] (or null).
struct BlockResult {
  PackedBlocks w;
  const float* bias = nullptr;
  float* y = nullptr;
};

/// Products of the same rows by several matrices of one format and depth. `rounds`: 32 neighbours of a row
/// become codes in [-127, 127] with one scale, and products are sums of bytes; else rows stay f32. A result
/// is the same chain of multiply-adds whatever m, its neighbours and the team: a row's bits do not depend on
/// its mates. Few rows read the packed bytes once; 2 m n k operations.
struct BlockProducts {
  std::span<const BlockResult> results;
  const float* x = nullptr;
  int64_t m = 0;
  bool rounds = true;
  Isa isa = best_isa();
};

/// What rows in the form for products with `w` take.
int64_t block_product_workspace(const PackedBlocks& w, int64_t m);

/// The team meets once: rows get their form, and groups of weight rows go over the threads.
void block_products(const BlockProducts& call, void* workspace, base::ThreadPool& pool);

}  // namespace trireme::cpu
