// Resizing of one or two neighbouring axes, one result row after the other: source rows are blended into one
// row, then its columns.
#pragma once

#include <cstdint>
#include <vector>

#include "base/threads/thread_pool.h"

namespace trireme::cpu {

constexpr int64_t kMostResizeTaps = 512;

/// Result index o of an axis is the sum over k of weight[k * out + o] * input[index[k * out + o]].
struct LineAxis {
  int64_t in = 1, out = 1, taps = 1;  // at most kMostResizeTaps
  int64_t ripple = 0;                 // most by which an index lies below one before it
  std::vector<int32_t> index;         // [taps, out], rising along both but for the ripple
  std::vector<float> weight;          // [taps, out]
};

/// x [outer, rows.in, columns.in, inner] -> y [outer, rows.out, columns.out, inner].
struct ResizeLines {
  const void* x;
  void* y;
  int64_t outer = 1, inner = 1;
  const LineAxis* rows = nullptr;     // null: extent 1, copied
  const LineAxis* columns = nullptr;  // null: extent 1, copied
  bool nearest = false;               // elements are copied, by the first tap
  int element_bytes = 4;              // 1, 2, 4 or 8 where nearest, else floats
};

/// The same columns with `inner` elements each, as an axis of single elements.
LineAxis widened(const LineAxis& columns, int64_t inner);

int64_t resize_scratch_bytes(const ResizeLines& args);

/// Each result is rounded after every product and every sum, rows first, taps in order: its bits depend on
/// nothing else. Reads and writes each element about once; 2 flop for each tap of either axis.
void resize_lines(const ResizeLines& args, void* scratch, base::ThreadPool& pool);

}  // namespace trireme::cpu
