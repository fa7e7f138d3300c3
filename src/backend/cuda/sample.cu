// Launchers of draws from distributions over a row.
#include "backend/cuda/sample.h"

#include <bit>

#include "backend/cuda/sample_kernels.h"
#include "backend/cuda/types.h"

namespace trireme::cuda {

void sample_tokens(On on, const SampleArgs& a) {
  if (a.rows == 0) return;
  by_float(on.dtype, [&](auto zero) {
    using T = decltype(zero);
    using Kernel = SampleTokens<T>;
    launch(on.stream, "sample_tokens",
           {blocks_for(cuda_stream(on.stream), a.rows, 4), Kernel::kThreads, Kernel::kSharedBytes},
           Kernel{static_cast<const T*>(a.x), a.settings, a.counters, a.y, a.rows, a.n,
                  static_cast<int>(std::bit_width(static_cast<uint64_t>(a.n - 1)))});
  });
}

void multinomial(On on, const MultinomialArgs& a) {
  if (a.rows * a.samples == 0) return;
  const int64_t shared = (2 * kWarp + Multinomial::kThreads) * static_cast<int64_t>(sizeof(double));
  launch(on.stream, "multinomial",
         {blocks_for(cuda_stream(on.stream), a.rows), Multinomial::kThreads, shared},
         Multinomial{a, on.dtype});
}

}  // namespace trireme::cuda
