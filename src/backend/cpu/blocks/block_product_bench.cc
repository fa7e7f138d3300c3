// Products of few rows with weights in blocks on one thread, in processor time: `bench_block_product
// [FORMAT]...`. For each format and number of rows it prints billions of operations per second, their share
// of a loop of byte dot products in the same rotation, and bytes of weights per second. The shortest of many
// short runs counts, which excludes the load of other programs.
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <string_view>
#include <vector>

#include "backend/cpu/blocks/block_product.h"
#include "base/memory/slab.h"
#include "base/rng.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace trireme::cpu {
namespace {

constexpr int64_t kRows = 4096,
                  kDepth = 2048;  // depth of the matrix: rows of x are converted once for all its rows
constexpr int kRounds = 30;

double processor_seconds() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

#if defined(__x86_64__)
__attribute__((target("avx512f,avx512vnni"))) void dot_loop(int64_t steps, int32_t* out) {
  __m512i sum[12], a = _mm512_set1_epi32(out[0]), b = _mm512_set1_epi32(out[1]);
  for (auto& s : sum) s = _mm512_setzero_si512();
  for (int64_t i = 0; i < steps; ++i) {
#pragma GCC unroll 12
    for (int j = 0; j < 12; ++j) sum[j] = _mm512_dpbusd_epi32(sum[j], a, b);
  }
  for (int j = 1; j < 12; ++j) sum[0] = _mm512_add_epi32(sum[0], sum[j]);
  _mm512_storeu_si512(out, sum[0]);
}
#endif

/// Seconds for `operations` of byte dot products; 0 if the processor has no such instruction.
double ceiling_seconds([[maybe_unused]] double operations) {
#if defined(__x86_64__)
  if (!__builtin_cpu_supports("avx512vnni")) return 0;
  int32_t out[16] = {1, 2};
  const auto steps = static_cast<int64_t>(operations / (12 * 128));
  const double start = processor_seconds();
  dot_loop(steps, out);
  const double seconds = processor_seconds() - start;
  return out[3] == 12345 ? 0 : seconds;
#else
  return 0;
#endif
}

void run(const tensor::BlockFormat& format, bool rounds, int64_t m) {
  base::Rng rng(3);
  std::vector<float> values(static_cast<size_t>(kRows * kDepth)), x(static_cast<size_t>(m * kDepth));
  for (float& v : values) v = static_cast<float>(rng.normal());
  for (float& v : x) v = static_cast<float>(rng.normal());
  const auto mapped = base::map_memory(static_cast<size_t>(kRows * format.row_bytes(kDepth)));
  auto* rows = static_cast<uint8_t*>(mapped.get());
  format.encode(values.data(), kRows * kDepth / format.weights, rows, nullptr);
  std::vector<uint8_t> memory(static_cast<size_t>(packed_block_bytes(format, kRows, kDepth)) + 8192);
  base::ThreadPool pool(1);
  const PackedBlocks w = pack_blocks({&format, rows, kRows, kDepth}, memory.data(), pool);
  const int64_t bytes = w.groups() * w.group_bytes();
  const std::shared_ptr<void> workspace =
      base::map_memory(static_cast<size_t>(block_product_workspace(w, m)));
  std::vector<float> y(static_cast<size_t>(m * kRows));
  const BlockResult to{w, nullptr, y.data()};
  const double operations = 2.0 * static_cast<double>(m * kRows * kDepth);
  double own = 1e9, most = 1e9;
  for (int round = 0; round < kRounds; ++round) {
    most = std::min(most, ceiling_seconds(operations));
    const double start = processor_seconds();
    block_products({.results = {&to, 1}, .x = x.data(), .m = m, .rounds = rounds}, workspace.get(), pool);
    own = std::min(own, processor_seconds() - start);
  }
  std::printf("%-10.*s %s %3lld rows %8.1f Gop/s %5.1f %% of dot products %7.1f GB/s\n",
              static_cast<int>(format.name.size()), format.name.data(), rounds ? "rounded" : "f32    ",
              static_cast<long long>(m), operations / own * 1e-9, 100 * most / own,
              static_cast<double>(bytes) / own * 1e-9);
}

}  // namespace
}  // namespace trireme::cpu

int main(int count, char** words) {
  using namespace trireme;
  for (const tensor::BlockFormat& format : tensor::all_block_formats()) {
    const bool is_wanted = count < 2 || std::any_of(words + 1, words + count,
                                                    [&](const char* word) { return format.name == word; });
    if (!is_wanted) continue;
    for (const bool rounds : {true, false}) {
      if (!rounds && !format.is_floats()) continue;
      for (const int64_t m : {1, 2, 4, 8, 16, 64}) cpu::run(format, rounds, m);
    }
  }
}
