// Chooses how a batch is cut into slices.
#include "lower/batch_slices.h"

#include <algorithm>

namespace trireme::lower {
namespace {

/// The most slices of a batch; trying all numbers takes a millisecond.
constexpr int64_t kMostSlices = int64_t{1} << 17;

struct WeightsRead {
  double bytes = 0, elements = 0;
};

/// The weights that one run of the program reads; for a table with gathered rows only those rows.
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
  // Half of the last-level cache of the CPUs used for tuning; the rest is for weights and other programs.
  constexpr int64_t kCacheBytes = int64_t{16} << 20;
  const int64_t arena = std::max<int64_t>(1, one_row.memory.arena_bytes);
  const auto worth = [&](int64_t slice_rows) {
    return static_cast<double>(slice_rows) * static_cast<double>(one_row.memory.sum_bytes) >=
           2.0 * static_cast<double>(one_row.memory.constant_bytes);
  };
  // Concurrent lanes all read the weights, from a shared cache or from memory. A core that does kFlopPerByte
  // operations per byte reads under 3 GB/s of f32 weights, or 12 GB/s of 8-bit ones. Weights of a few times
  // the cache's size are mostly still cached when the next lane reads them: then kFlopPerWeightAndLane
  // suffices, with which all lanes together read 35 GB/s.
  constexpr double kFlopPerByte = 96, kFlopPerWeightAndLane = 30;
  const double flop = one_row.cost().flop;
  const WeightsRead read = weights_read(one_row);
  const bool is_near = read.bytes <= 8.0 * kCacheBytes;
  const double apart = kFlopPerByte * read.bytes, near = kFlopPerWeightAndLane * threads * read.elements;
  const double least = is_near ? std::min(apart, near) : apart;
  const auto computes = [&](int64_t slice_rows) { return static_cast<double>(slice_rows) * flop > least; };
  // Waking the other threads takes a core 10 to 20 us, and they look for more work just as long: a batch that
  // one thread completes in that time is not divided. In seconds, for a core of modest speed.
  constexpr double kWake = 20e-6, kFlopPerSecond = 30e9, kBytesPerSecond = 10e9;
  const double moved = std::max(one_row.cost().bytes, static_cast<double>(one_row.memory.sum_bytes));
  const bool is_short = static_cast<double>(rows) * (flop / kFlopPerSecond + moved / kBytesPerSecond) < kWake;
  // Extents come from requests, and rows without elements may have any number, so the search is bounded.
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
