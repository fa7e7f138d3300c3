// Products of one row with stored weights beside reading as many bytes: share of the read bandwidth. For
// several rows: multiply-adds a second.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <vector>

#include "backend/cpu/dense/weight_rows.h"
#include "base/machine/memory_read.h"

namespace trireme::cpu {
namespace {

constexpr int64_t kDepthOfRows = 8192;
constexpr int64_t kBytes = int64_t{512} << 20;  // beyond the caches

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// Reads all bytes; the sum keeps the compiler honest.
uint64_t read_all(const std::vector<uint64_t>& words, base::ThreadPool& pool) {
  std::vector<uint64_t> sums(static_cast<size_t>(pool.size()) * 16 + 64);
  const int64_t n = static_cast<int64_t>(words.size()), piece = 1 << 15;
  pool.for_range(n / piece, 1, [&](int64_t begin, int64_t end) {
    const auto first = static_cast<size_t>(begin * piece), count = static_cast<size_t>((end - begin) * piece);
    sums[static_cast<size_t>(begin) % sums.size()] =
        base::read_through(std::span(words).subspan(first, count));
  });
  return sums[0];
}

void weights(benchmark::State& state) {
  const int bits = static_cast<int>(state.range(0)), threads = static_cast<int>(state.range(1));
  const int64_t m = state.range(2), n = kBytes * 8 / bits / kDepthOfRows, groups = kDepthOfRows / 64;
  base::ThreadPool pool(threads);
  std::vector<uint64_t> w(static_cast<size_t>(kBytes / 8), 0x1234567812345678);
  std::vector<float> scale(static_cast<size_t>(n * groups), 0.01f);
  std::vector<float> x(static_cast<size_t>(m * kDepthOfRows), 0.5f), y(static_cast<size_t>(m * n));
  const WeightRowsCall call{.weights = {.w = reinterpret_cast<const uint8_t*>(w.data()),
                                        .scale = scale.data(),
                                        .codes = bits == 4   ? WeightCodes::int4
                                                 : bits == 8 ? WeightCodes::int8
                                                             : WeightCodes::bf16,
                                        .n = n,
                                        .k = kDepthOfRows,
                                        .group = 64},
                            .x = x.data(),
                            .y = y.data(),
                            .m = m};
  const double bytes = static_cast<double>(kBytes) + 4.0 * static_cast<double>(n * groups);
  std::vector<double> share, gigabytes;
  for (auto _ : state) {
    auto start = std::chrono::steady_clock::now();
    benchmark::DoNotOptimize(read_all(w, pool));
    const double reading = seconds_since(start) * bytes / static_cast<double>(kBytes);
    start = std::chrono::steady_clock::now();
    weight_rows(call, pool);
    const double own = seconds_since(start);
    benchmark::DoNotOptimize(y.data());
    share.push_back(reading / own);
    gigabytes.push_back(bytes / own * 1e-9);
  }
  const auto median = [](std::vector<double> v) {
    std::sort(v.begin(), v.end());
    return v[v.size() / 2];
  };
  state.counters["GB/s"] = median(gigabytes);
  state.counters["of_read_bandwidth"] = median(share);
  state.counters["GFLOP/s"] =
      median(gigabytes) / bytes * 2.0 * static_cast<double>(m * n) * static_cast<double>(kDepthOfRows);
}

BENCHMARK(weights)
    ->ArgNames({"bits", "threads", "rows"})
    ->ArgsProduct({{16, 8, 4}, {1, 2}, {1, 4, 16, 72}})
    ->Iterations(7)
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace trireme::cpu
