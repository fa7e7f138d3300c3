// How fast a communicator is: algorithm and bus bandwidth by size as nccl-tests define them, latency fitted.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "tensor/device.h"

namespace trireme::comm {

inline constexpr int64_t kMostBenchBytes = int64_t{1} << 40;

struct BenchSpec {
  Collective what = Collective::all_reduce;
  int64_t min_bytes = 1024, max_bytes = 64 << 20;  // at least 1, at most kMostBenchBytes
  int64_t min_ns = 100'000'000;                    // measured time a size
  int repeats = 5;                                 // of which the median counts
};

/// `bytes` as nccl-tests count: the buffer of a rank, or the whole tensor of an all-gather or reduce-scatter.
struct BenchPoint {
  int64_t bytes = 0;
  double seconds = 0;         // of one operation
  double algorithm_gb_s = 0;  // bytes / seconds
  double bus_gb_s = 0;        // times bus_factor: comparable with a link's speed at any number of ranks
  double copy_gb_s = 0;       // memcpy of as many bytes by every rank at once: the bound of a shared memory
};

/// seconds = latency + bytes / bandwidth, by least squares of relative errors. bytes_per_s is 0 where the
/// times do not grow with the size: latency is all there is to see; latency_s is 0 where it is too small to
/// see.
struct BenchFit {
  double latency_s = 0;
  double bytes_per_s = 0;
};

/// 2(n - 1)/n for all-reduce; (n - 1)/n for reduce-scatter, all-gather, all-to-all; 1 for broadcast.
double bus_factor(Collective what, int ranks);

/// A rank's device, and the communicator of the same ranks on its memory, whose calls `stream` runs.
struct BenchDevice {
  tensor::Device& device;
  tensor::Stream& stream;
  Communicator& group;
};

/// Collective; every rank gets the slowest rank's times. `on`: buffers are the device's, of which each has
/// one.
std::vector<BenchPoint> run_bench(Communicator& ranks, const BenchSpec& spec,
                                  const BenchDevice* on = nullptr);

/// The sizes of a run, fourfold from `min_bytes` on, rounded to whole cache lines for each rank; each once,
/// and none above `max_bytes` unless that is less than a cache line for each.
std::vector<int64_t> bench_sizes(const BenchSpec& spec, int ranks);

BenchFit fit(std::span<const BenchPoint> points);

}  // namespace trireme::comm
