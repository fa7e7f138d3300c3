// Measures this machine's limits: multiply-adds in f32, dot products in int8 (by tiles if the processor has
// AMX), bytes read from memory.
//
// bench_limits [threads]: for each line "milliseconds" of standard input, measures for about that time and
// prints one JSON line. The caller alternates it with the contenders, so that other load on the machine slows
// the limit and the contender alike.
#include <immintrin.h>
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <iostream>
#include <latch>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "backend/cpu/tiles/amx_tiles.h"
#include "backend/cpu/tiles/dense_isa.h"
#include "base/machine/memory_read.h"

namespace trireme {
namespace {

using Clock = std::chrono::steady_clock;

/// Independent accumulators: enough to hide a latency of 4 cycles on 2 ports, the most of all cores tested,
/// but few enough to stay in registers.
constexpr int kWide = 24, kNarrow = 12;
constexpr int64_t kRounds = 20000, kTileRounds = kRounds / 16;

__attribute__((target("avx512f"))) float multiply_add_avx512() {
  __m512 acc[kWide];
  for (int i = 0; i < kWide; ++i) acc[i] = _mm512_set1_ps(static_cast<float>(i));
  const __m512 a = _mm512_set1_ps(0.999f), b = _mm512_set1_ps(1e-3f);
  for (int64_t r = 0; r < kRounds; ++r) {
#pragma GCC unroll 24
    for (int i = 0; i < kWide; ++i) acc[i] = _mm512_fmadd_ps(acc[i], a, b);
  }
  for (int i = 1; i < kWide; ++i) acc[0] = _mm512_add_ps(acc[0], acc[i]);
  return _mm512_cvtss_f32(acc[0]);
}

__attribute__((target("avx2,fma"))) float multiply_add_avx2() {
  __m256 acc[kNarrow];
  for (int i = 0; i < kNarrow; ++i) acc[i] = _mm256_set1_ps(static_cast<float>(i));
  const __m256 a = _mm256_set1_ps(0.999f), b = _mm256_set1_ps(1e-3f);
  for (int64_t r = 0; r < kRounds; ++r) {
#pragma GCC unroll 12
    for (int i = 0; i < kNarrow; ++i) acc[i] = _mm256_fmadd_ps(acc[i], a, b);
  }
  for (int i = 1; i < kNarrow; ++i) acc[0] = _mm256_add_ps(acc[0], acc[i]);
  return _mm256_cvtss_f32(acc[0]);
}

// Written in assembly, because GCC 12 copies the intrinsic's accumulators through memory. The content of the
// registers does not matter: integer arithmetic has no slow values.
#define TRIREME_DOT(n) "vpdpbusd %%zmm31, %%zmm30, %%zmm" #n "\n\t"
__attribute__((target("avx512f,avx512vnni"))) float dot_product_vnni() {
  for (int64_t r = 0; r < kRounds; ++r) {
    __asm__ volatile(
        TRIREME_DOT(0) TRIREME_DOT(1) TRIREME_DOT(2) TRIREME_DOT(3) TRIREME_DOT(4) TRIREME_DOT(5)
            TRIREME_DOT(6) TRIREME_DOT(7) TRIREME_DOT(8) TRIREME_DOT(9) TRIREME_DOT(10) TRIREME_DOT(11)
        :
        :
        : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11");
  }
  return 0;
}
#undef TRIREME_DOT

/// Four tiles of sums, two of each operand, as a product would hold them.
__attribute__((target("amx-tile,amx-int8"))) float dot_product_amx() {
  cpu::TileShapes shapes;
  for (int i = 0; i < 8; ++i) shapes.set(i, 16, 64);
  cpu::tiles_see_stores();
  _tile_loadconfig(&shapes);
  for (int64_t r = 0; r < kTileRounds; ++r) {
    _tile_dpbusd(0, 4, 6);
    _tile_dpbusd(1, 4, 7);
    _tile_dpbusd(2, 5, 6);
    _tile_dpbusd(3, 5, 7);
  }
  _tile_release();
  return 0;
}

/// Eight-bit products summed in pairs and then in fours, as processors without VNNI have to compute them.
__attribute__((target("avx2"))) float dot_product_avx2() {
  __m256i acc[kNarrow];
  for (int i = 0; i < kNarrow; ++i) acc[i] = _mm256_set1_epi32(i);
  const __m256i ones = _mm256_set1_epi16(1), b = _mm256_set1_epi8(-2);
  for (int64_t r = 0; r < kRounds; ++r) {
#pragma GCC unroll 12
    for (int i = 0; i < kNarrow; ++i) {
      acc[i] = _mm256_add_epi32(acc[i], _mm256_madd_epi16(_mm256_maddubs_epi16(acc[i], b), ones));
    }
  }
  for (int i = 1; i < kNarrow; ++i) acc[0] = _mm256_add_epi32(acc[0], acc[i]);
  return static_cast<float>(_mm256_extract_epi32(acc[0], 0));
}

struct Loop {
  float (*run)();
  double operations;  ///< of one call
};

Loop f32_loop() {
  if (__builtin_cpu_supports("avx512f")) return {multiply_add_avx512, double{kRounds} * kWide * 16 * 2};
  return {multiply_add_avx2, double{kRounds} * kNarrow * 8 * 2};
}

Loop int8_loop() {
  if (cpu::best_isa() >= cpu::Isa::amx) return {dot_product_amx, double{kTileRounds} * 4 * 16 * 16 * 64 * 2};
  if (__builtin_cpu_supports("avx512vnni")) return {dot_product_vnni, double{kRounds} * kNarrow * 64 * 2};
  return {dot_product_avx2, double{kRounds} * kNarrow * 32 * 2};
}

/// Units per nanosecond of the fastest call, and of all calls together. The first is what the machine can do,
/// the second what it did beside its other load.
struct Rates {
  double best = 0, mean = 0;
};

/// The rates of calls that do `units` each, repeated for `budget`.
template <class Call>
Rates rates_of(double units, std::chrono::nanoseconds budget, const Call& call) {
  Rates rates;
  double calls = 0;
  const auto start = Clock::now();
  auto end = start;
  do {
    const auto begin = end;
    call();
    end = Clock::now();
    ++calls;
    rates.best = std::max(rates.best, units / std::chrono::duration<double, std::nano>(end - begin).count());
  } while (end < start + budget);
  rates.mean = calls * units / std::chrono::duration<double, std::nano>(end - start).count();
  return rates;
}

/// The processors that this process may use.
std::vector<int> processors() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  sched_getaffinity(0, sizeof allowed, &allowed);
  std::vector<int> out;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &allowed)) out.push_back(cpu);
  }
  return out;
}

/// Pins each thread to a processor of its own, because the rate of two threads that share one is no limit of
/// the machine.
class Limits {
 public:
  explicit Limits(size_t threads) : cpus_(processors()), memory_(threads, std::vector<uint64_t>(kWords, 1)) {}

  void measure(double budget_ms) {
    const auto third = std::chrono::nanoseconds(static_cast<int64_t>(budget_ms * 1e6 / 3));
    const Rates f32 = compute(f32_loop(), third), int8 = compute(int8_loop(), third), memory = read(third);
    std::printf("{\"f32_gflops\":%.1f,\"int8_gops\":%.1f,\"read_gbs\":%.1f,", f32.best, int8.best,
                memory.best);
    std::printf("\"f32_mean_gflops\":%.1f,\"read_mean_gbs\":%.1f}\n", f32.mean, memory.mean);
    std::fflush(stdout);
  }

 private:
  /// 256 MiB a thread: processors that share a cache of 260 MiB kept smaller ones.
  static constexpr size_t kWords = size_t{32} << 20;

  Rates compute(const Loop& loop, std::chrono::nanoseconds budget) {
    return on_all(loop.operations, budget, [&](size_t) { return loop.run(); });
  }

  Rates read(std::chrono::nanoseconds budget) {
    return on_all(double{kWords} * sizeof(uint64_t), budget,
                  [&](size_t thread) { return static_cast<float>(base::read_through(memory_[thread])); });
  }

  /// The rates of all threads together; they start at the same time.
  template <class Call>
  Rates on_all(double units, std::chrono::nanoseconds budget, const Call& call) {
    std::vector<Rates> each(memory_.size());
    std::vector<float> results(memory_.size());  // keep the compiler from removing the loops
    std::latch ready(static_cast<ptrdiff_t>(memory_.size()));
    std::vector<std::jthread> threads;
    for (size_t i = 0; i < memory_.size(); ++i) {
      threads.emplace_back([&, i] {
        cpu_set_t own;
        CPU_ZERO(&own);
        CPU_SET(cpus_[i % cpus_.size()], &own);
        sched_setaffinity(0, sizeof own, &own);
        float sum = 0;
        ready.arrive_and_wait();
        each[i] = rates_of(units, budget, [&] { sum += call(i); });
        results[i] = sum;
      });
    }
    threads.clear();
    Rates all;
    for (const Rates& one : each) {
      all.best += one.best;
      all.mean += one.mean;
    }
    sink_ = std::accumulate(results.begin(), results.end(), 0.0f);
    return all;
  }

  std::vector<int> cpus_;
  std::vector<std::vector<uint64_t>> memory_;  ///< of each thread
  volatile float sink_ = 0;
};

}  // namespace
}  // namespace trireme

int main(int argc, char** argv) {
  trireme::Limits limits(argc > 1 ? std::stoul(argv[1]) : 1);
  for (double budget_ms = 0; std::cin >> budget_ms;) limits.measure(budget_ms);
}
