// Whether work grows as its input does: a ratio of two CPU times, which says the same on any machine, under
// any load and without optimisation, where a bound in seconds does not.
#pragma once

#include <algorithm>
#include <cstdint>
#include <ctime>

namespace trireme::tests {

/// CPU seconds of this process that `run()` takes, the least of so many calls.
template <class Run>
double least_cpu_seconds(int calls, const Run& run) {
  double least = 1e30;
  for (int i = 0; i < calls; ++i) {
    const std::clock_t begin = std::clock();
    run();
    least = std::min(least, static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC);
  }
  return least;
}

/// How many times as much work `run(8 * size)` is as `run(size)`: about 8 where work follows the size, 64
/// where it follows the square. `size` is so large that one run takes some milliseconds.
template <class Run>
double growth_over_eight(int64_t size, const Run& run) {
  double least = 1e30;
  for (int i = 0; i < 3 && least > 16; ++i) {  // what disturbs the larger run is not taken for growth
    const double small_s = least_cpu_seconds(3, [&] { run(size); });
    least = std::min(least, least_cpu_seconds(1, [&] { run(8 * size); }) / std::max(small_s, 1e-6));
  }
  return least;
}

/// Between 8 and 64, nearer to neither: caches that no longer hold the larger input cost up to three times as
/// much.
constexpr double kMostLinearGrowth = 28;

}  // namespace trireme::tests
