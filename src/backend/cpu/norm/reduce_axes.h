// Reductions of one axis of [outer, axis, inner]: sums, means, extremes, norms, products, logsumexp, arg
// extremes.
#pragma once

#include <cstdint>

#include "base/threads/thread_pool.h"

namespace trireme::cpu {

enum class ReduceOp : uint8_t {
  sum,          // 1 flop per element
  mean,         // 1
  max,          // NaN wins; empty: -inf. 3
  min,          // NaN wins; empty: +inf. 3
  prod,         // 1
  l1,           // sum |x|, 2
  l2,           // sqrt(sum x^2), 2
  sum_square,   // 2
  log_sum,      // log(sum x), 1
  log_sum_exp,  // max + log(sum exp(x - max)): read twice, 18
};

struct ReduceArgs {
  const float* x;  // [outer, axis, inner]
  float* y;        // [outer, inner]
  int64_t outer = 1;
  int64_t axis = 0;
  int64_t inner = 1;
};

/// y[o, i] = op over a of x[o, a, i]. 4 bytes read per element.
/// Order: a few elements (up to 24 in a row, up to 64 over axis and inner) one by one in f32; else f32 runs
/// of fixed length (8192 along a contiguous axis in 64 interleaved chains, 256 elsewhere), their results
/// combined in double, in order (fewer than 32768 columns: by at most 32 equal shares of the axis first); it
/// depends on the shape alone, never on threads or on outer neighbours.
void reduce(ReduceOp op, const ReduceArgs& args, base::ThreadPool& pool);

struct ArgReduceArgs {
  const float* x;  // [outer, axis, inner]
  int64_t* y;      // [outer, inner]
  int64_t outer = 1;
  int64_t axis = 0;  // at least 1
  int64_t inner = 1;
  bool min = false;   // argmin instead of argmax
  bool last = false;  // of equal extremes the last index, not the first
};

/// Index of the extreme element along the axis; a NaN counts as the extreme. 4 bytes per element (8 where
/// inner is 1 and a row does not fit L1). Throws invalid_argument if the axis is empty.
void arg_reduce(const ArgReduceArgs& args, base::ThreadPool& pool);

}  // namespace trireme::cpu
