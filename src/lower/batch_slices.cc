// The choice of slices.
#include "lower/batch_slices.h"

#include <algorithm>

namespace trireme::lower {
namespace {

/// No batch runs in more parts than this; a search through their numbers takes a millisecond.
constexpr int64_t kMostSlices = int64_t{1} << 17;

struct WeightsRead {
  double bytes = 0, elements = 0;
};

/// Weights that one run of the program reads; of a table that rows are gathered from, only those rows.
WeightsRead weights_read(const compile::Program& program) {
  WeightsRead read;
  for (const compile::Step& step : program.steps) {
    for (const compile::SlotId id : step.in) {
      if (id == compile::kNoSlot || program.slot(id).kind != compile::SlotKind::constant) continue;
      const double bytes = std::min(static_cast<double>(program.slot(id).bytes), step.cost.bytes);
      read.bytes += bytes;
      read.elements += bytes * 8 / static_cast<double>(tensor::bits_of(program.slot(id).dtype));
    }
  }
  return read;
}

}  // namespace

SlicePlan plan_slices(const compile::Program& one_row, int64_t rows, int threads) {
  // Half of the last-level cache of the processors this was tuned on; the rest is for weights and neighbours.
  constexpr int64_t kCacheBytes = int64_t{16} << 20;
  const int64_t arena = std::max<int64_t>(1, one_row.memory.arena_bytes);
  const auto worth = [&](int64_t slice_rows) {
    return static_cast<double>(slice_rows) * static_cast<double>(one_row.memory.sum_bytes) >=
           2.0 * static_cast<double>(one_row.memory.constant_bytes);
  };
  // Lanes that run at the same time all read the weights, from a cache they share or from memory. A core that
  // does this many operations for each byte wants under 3 GB/s of f32 weights, 12 of 8-bit ones. Of a few
  // times the cache's size much is still there when the next lane reads it: then so many for each weight and
  // lane do, by which all lanes together want 35 GB/s.
  constexpr double kFlopPerByte = 96, kFlopPerWeightAndLane = 30;
  const double flop = one_row.cost().flop;
  const WeightsRead read = weights_read(one_row);
  const bool is_near = read.bytes <= 8.0 * kCacheBytes;
  const double apart = kFlopPerByte * read.bytes, near = kFlopPerWeightAndLane * threads * read.elements;
  const double least = is_near ? std::min(apart, near) : apart;
  const auto computes = [&](int64_t slice_rows) { return static_cast<double>(slice_rows) * flop > least; };
  // Waking the other threads takes a core 10 to 20 us, and they look for more work as long again: a batch
  // that one thread is through with in that time stays with it. In seconds, at a core's modest speeds.
  constexpr double kWake = 20e-6, kFlopPerSecond = 30e9, kBytesPerSecond = 10e9;
  const double moved = std::max(one_row.cost().bytes, static_cast<double>(one_row.memory.sum_bytes));
  const bool is_short = static_cast<double>(rows) * (flop / kFlopPerSecond + moved / kBytesPerSecond) < kWake;
  // Extents come from requests: rows without elements may be any number, so the search is bounded.
  const int64_t most = std::min(rows, kMostSlices);
  const auto fits = [&](int64_t slice, double lanes, double bytes) {
    return slice == 1 || static_cast<double>(slice) * static_cast<double>(arena) * lanes <= bytes;
  };
  for (int64_t parts = threads; threads > 1 && !is_short && parts <= most; parts += threads) {
    const int64_t slice = rows / parts;
    if (rows % parts != 0 || !fits(slice, threads, 2.0 * kCacheBytes)) continue;
    if (worth(slice) || computes(slice)) return {parts, threads};
    break;
  }
  SlicePlan plan;
  if (static_cast<double>(rows) * static_cast<double>(arena) <= static_cast<double>(kCacheBytes)) return plan;
  for (int64_t parts = 2; parts <= most; ++parts) {
    const int64_t slice = rows / parts;
    if (rows % parts != 0 || !fits(slice, 1, kCacheBytes)) continue;
    if (worth(slice)) plan.slices = parts;
    break;
  }
  return plan;
}

}  // namespace trireme::lower
