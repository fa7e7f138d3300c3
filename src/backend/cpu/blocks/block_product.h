// Products of f32 rows with weights in blocks, and of rows rounded to 8 bits on the way.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>

#include "backend/cpu/blocks/block_pack.h"
#include "backend/cpu/blocks/block_tiles.h"
#include "base/threads/thread_pool.h"

namespace trireme::cpu {

/// y [m, n] = x [m, k] w' + bias [n] (or null) + residual [m, n] (or null).
struct BlockResult {
  PackedBlocks w;
  const float* bias = nullptr;
  float* y = nullptr;
  const float* residual = nullptr;
};

/// Products of the same rows by several matrices of one depth. `rounds`: 32 neighbours of a row
/// become codes in [-127, 127] with one scale, and products are sums of bytes; rows that meet bf16 weights
/// become bf16, those that meet f16 stay f32. Else all rows stay f32. A result
/// is the same chain of multiply-adds whatever m, its neighbours and the team: a row's bits do not depend on
/// its mates. Few rows read the packed bytes once; 2 m n k operations.
struct BlockProducts {
  std::span<const BlockResult> results;
  const float* x = nullptr;
  int64_t m = 0;
  bool rounds = true;
  Isa isa = best_isa();
  const float* norm = nullptr;  ///< [k] or null: products are of rms_norm(x) with this scale and `epsilon`
  float epsilon = 0;
  /// Of two equal matrices: result 1 is silu(result 0) * result 1 in the end; result 0 is scratch.
  bool is_gated = false;
  /// Tasks go through this many equal slices of all results, one slice after another. Each matrix has that
  /// many slices of whole groups.
  int64_t slices = 1;
};

/// Matrices of one call at most.
inline constexpr size_t kMostBlockResults = 4;

/// What rows in the forms for products with `weights` take; `has_norm`: they are normalised first.
int64_t block_product_workspace(std::span<const PackedBlocks> weights, int64_t m, bool has_norm = false);
inline int64_t block_product_workspace(const PackedBlocks& w, int64_t m) {
  return block_product_workspace({&w, 1}, m);
}

/// The tasks of such products, for whoever has a loop of several kinds of them. Any thread may run any task,
/// each once; `call` and `workspace` outlive it.
class BlockLoop {
 public:
  BlockLoop(const BlockProducts& call, void* workspace);
  int64_t tasks() const { return call_.slices * slice_tasks_; }
  int64_t slice_tasks() const { return slice_tasks_; }
  int64_t slice_of(int64_t task) const { return task / slice_tasks_; }
  void run(int64_t task);

 private:
  /// Where rows in the form for one format lie, by its layout's parts.
  struct FormAt {
    FormAt() = default;
    FormAt(const PackedBlocks& w, int64_t m, int64_t from);
    int64_t codes = 0, scales = 0, starts = 0, sums = 0, end = 0;
  };
  /// A format among the results, and how rows meet it.
  struct Family {
    int format = -1;
    int64_t part = 32, code_bytes = 1;
    const BlockTileFn* tiles = nullptr;
    const BlockTileFn* pair = nullptr;  // or null
    BlockRowFn to_form = nullptr;
    FormAt at;
  };
  /// One group of weights from `first` on, or two.
  struct GroupRange {
    int64_t first, count;
  };
  friend int64_t block_product_workspace(std::span<const PackedBlocks> weights, int64_t m, bool has_norm);
  const Family& family_of(const BlockResult& to) const;
  const float* row(int64_t i) const;
  BlockRowOut form(const Family& family, int64_t i) const;
  void make_forms();
  void make_form(int64_t i);
  int64_t group_product(const BlockResult& to, GroupRange groups, int64_t row) const;
  void range_product(const BlockResult& to, int64_t begin, int64_t end) const;
  void add_residual(const BlockResult& to, int64_t begin, int64_t end) const;
  void gate(int64_t begin, int64_t end) const;

  const BlockProducts& call_;
  Family families_[kMostBlockResults];
  size_t family_count_ = 0;
  int64_t k_, slice_tasks_ = 1, slice_groups_ = 0;
  uint8_t* memory_;  // normalised rows first, if there are any
  int64_t piece_rows_, pieces_;
  std::atomic<int64_t> next_{0}, done_{0};  // pieces of rows
};

/// The team meets once: rows get their form, and groups of weight rows go over the threads.
void block_products(const BlockProducts& call, void* workspace, base::ThreadPool& pool);

}  // namespace trireme::cpu
