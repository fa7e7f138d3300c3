// Launchers of lookups by index, of their gradient, and of writes at indices.
#pragma once

#include "backend/cuda/index/copy.h"
#include "backend/cuda/device/on.h"

namespace trireme::cuda {

/// Where indices are and what they may be: negative ones count from the end, one out of range is reported.
struct Indices {
  const void* data = nullptr;
  bool is_wide = true;       ///< i64, else i32
  int64_t extent = 0;        ///< rows of the whole axis
  int64_t first = 0;         ///< of which those from here on
  int64_t rows = 0;          ///< are at hand
  int64_t* fault = nullptr;  ///< ir::RunArgs
  int64_t step = 0;
};

/// y [outer, count, slice] = x [outer, rows, slice] at `count` indices; zeros for rows that are not at hand.
struct GatherSlices {
  Indices at;
  int64_t outer = 1, count = 0, slice_bytes = 0;
};
void gather_slices(tensor::Stream& stream, const GatherSlices& args, const void* x, void* y);

/// Keys [sorted_length(n)] in rising order: the first n of them, the others are all ones.
int64_t sorted_length(int64_t n);
void sort_keys(tensor::Stream& stream, uint64_t* keys, int64_t sorted_length);

/// dx [outer, rows, slice] = sums of the slices of dy [outer, count, slice] by index, in the order of their
/// places, on top of `base` (or zeros where it is null, or dx itself). f32, f16, bf16, f64.
struct GatherGrad {
  Indices at;
  int64_t outer = 1, count = 0, slice = 0;
  int64_t padding = -1;  ///< row at hand that gets nothing
  const void* base = nullptr;
};
int64_t gather_grad_workspace_bytes(int64_t count);
void gather_grad(On on, const GatherGrad& args, const void* dy, void* dx, void* workspace);

/// Moves of `unit_bytes`-elements by an index for each of them, or by tuples of `depth` indices for slices.
struct IndexedMove {
  Indices at;  ///< extent of the axis; of tuples unused
  // By element: walk of the indices' extents, with x's steps (0 along the axis).
  std::vector<int64_t> extent, steps;
  int64_t axis_step = 1;
  // By tuple: extents and steps of the dimensions they name; `tuples` for each of the batches.
  std::vector<int64_t> tuple_extent, tuple_step;
  int64_t tuples = 0, batches = 1, block = 0, slice = 1;
  int64_t unit_bytes = 4;
};
/// y[i] = x at i with its axis entry replaced; y [batches, tuples, slice] = slices of x at tuples.
void gather_elements(tensor::Stream& stream, const IndexedMove& move, const void* x, void* y);
void gather_tuples(tensor::Stream& stream, const IndexedMove& move, const void* x, void* y);
/// y [elements], which holds x already, with updates written; of repeated indices the last counts.
struct ScatterTarget {
  const void* updates = nullptr;
  void* y = nullptr;
  int64_t elements = 0;
  void* workspace = nullptr;  ///< scatter_workspace_bytes(slices of y)
};
int64_t scatter_workspace_bytes(int64_t slices);
void scatter_elements(tensor::Stream& stream, const IndexedMove& move, const ScatterTarget& to);
void scatter_tuples(tensor::Stream& stream, const IndexedMove& move, const ScatterTarget& to);

enum class ScatterJoin : uint8_t { add, mul, max, min };
/// y joined with the updates that go to each slice, in their order: sorted by slice, so that repeated indices
/// give the same bits in every run. f32, f16, bf16 (joined in f32), f64, i32, i64 (which wrap around).
/// `tuples`: of gather_tuples' kind. to.workspace: scatter_join_workspace_bytes(updates).
int64_t scatter_join_workspace_bytes(const IndexedMove& move, bool tuples);
void scatter_joined(On on, const IndexedMove& move, bool tuples, ScatterJoin join, const ScatterTarget& to);

}  // namespace trireme::cuda
