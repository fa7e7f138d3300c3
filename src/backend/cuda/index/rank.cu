// Launchers of selection by sorting.
#include "backend/cuda/index/index.h"
#include "backend/cuda/index/rank_kernels.h"
#include "backend/cuda/device/types.h"

namespace trireme::cuda {

int64_t top_k_sorted_workspace_bytes(const TopKArgs& a) {
  return sorted_length(a.outer * a.n * a.inner) * static_cast<int64_t>(sizeof(uint64_t));
}

void top_k_sorted(On on, const TopKArgs& a, void* workspace) {
  const int64_t count = a.outer * a.n * a.inner, results = a.outer * a.k * a.inner;
  if (results == 0) return;
  const int64_t padded = sorted_length(count);
  auto* keys = static_cast<uint64_t*>(workspace);
  int place_bits = 1;
  while ((int64_t{1} << place_bits) < a.n) ++place_bits;
  const auto run = [&](auto zero) {
    using T = decltype(zero);
    launch(on.stream, "rank_keys", flat_launch(on.stream, padded),
           RankKeys<T>{a, keys, count, padded, place_bits});
    sort_keys(on.stream, keys, padded);
    launch(on.stream, "take_ranks", flat_launch(on.stream, results),
           TakeRanks<T>{a, keys, results, place_bits});
  };
  if (on.dtype == tensor::DType::i32) return run(int32_t{});
  by_float(on.dtype, run);
}

}  // namespace trireme::cuda
