// Moves of elements without arithmetic: strided copies, permutations of axes, slices, concatenation, padding.
#pragma once

#include <cstdint>
#include <span>

#include "base/threads/thread_pool.h"

namespace trireme::cpu {

constexpr int kCopyMaxRank = 12;

struct StridedCopy {
  const void* x;                       // first element of the source
  void* y;                             // first element of the result
  std::span<const int64_t> shape;      // extents, outermost first
  std::span<const int64_t> x_strides;  // in elements; 0 repeats, negative reverses
  std::span<const int64_t> y_strides;  // in elements; no two indices may meet
  int element_bytes = 4;               // 1, 2, 4, 8 or 16
};

/// y[index . y_strides] = x[index . x_strides] for every index in shape: slices, concatenation into a part of
/// y, broadcasts, reversals and transposes. Axes that lie together are merged; a contiguous innermost axis
/// becomes memcpy, a transposed pair of axes goes through in-register tile transposes. Bytes: 2 element_bytes
/// per element. Throws invalid_argument for an unsupported element size or rank.
void copy_strided(const StridedCopy& args, base::ThreadPool& pool);

struct Permute {
  const void* x;
  void* y;                         // dense, shape[order[0]], shape[order[1]], ...
  std::span<const int64_t> shape;  // of x, dense
  std::span<const int> order;      // result axis i is source axis order[i]
  int element_bytes = 4;
};

/// Permutes the axes of a dense tensor. Cost and errors as copy_strided; also throws if order is no
/// permutation.
void permute(const Permute& args, base::ThreadPool& pool);

enum class PadMode : uint8_t {
  constant,
  edge,     // the nearest element
  reflect,  // mirrored about the edge element, which is not repeated
  wrap,     // periodic
};

struct Pad {
  const void* x;
  void* y;                          // dense, shape[i] + before[i] + after[i]
  std::span<const int64_t> shape;   // of x, dense
  std::span<const int64_t> before;  // may be negative: elements cut away
  std::span<const int64_t> after;
  PadMode mode = PadMode::constant;
  const void* value = nullptr;  // one element for PadMode::constant; none means zero bytes
  int element_bytes = 4;
};

/// Pads every axis. 2 element_bytes per element of y. Throws invalid_argument if an axis becomes negative, or
/// if an empty axis is padded from its elements.
void pad(const Pad& args, base::ThreadPool& pool);

}  // namespace trireme::cpu
