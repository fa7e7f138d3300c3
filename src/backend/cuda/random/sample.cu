// Launchers of sampling from distributions over a row.
#include "backend/cuda/random/sample.h"

#include <bit>

#include "backend/cuda/random/token_block_draw.h"
#include "backend/cuda/random/token_block_kernels.h"
#include "backend/cuda/random/token_kernels.h"
#include "backend/cuda/device/types.h"

namespace trireme::cuda {

namespace {

int place_bits_of(const SampleArgs& a) {
  return static_cast<int>(std::bit_width(static_cast<uint64_t>(a.n - 1)));
}

}  // namespace

void sample_tokens(On on, const SampleArgs& a, void* workspace) {
  if (a.n < kTokensForBlocks || a.rows == 0) return sample_tokens_by_rows(on, a);
  by_float(on.dtype, [&](auto zero) {
    using T = decltype(zero);
    using Counting = CountBins<T>;
    constexpr int kThreads = TokenSums::kThreads;
    const int bits = place_bits_of(a);
    const int64_t blocks = a.rows * TokenBlocks::blocks_of(a.n);
    launch(on.stream, "sample_tokens: largest", {blocks, kThreads, TopTokens<T>::kSharedBytes},
           TopTokens<T>{a, bits, workspace});
    launch(on.stream, "sample_tokens: bins",
           {a.rows * Counting::blocks_of(a), kThreads, Counting::kSharedBytes}, Counting{a, bits, workspace});
    launch(on.stream, "sample_tokens: draw", {blocks, kThreads, DrawTokens<T>::kSharedBytes},
           DrawTokens<T>{a, bits, workspace});
  });
}

int64_t sample_workspace_bytes(int64_t rows, int64_t n) {
  return n < kTokensForBlocks ? 0 : rows * TokenBlocks::bytes(n);
}

void sample_tokens_by_rows(On on, const SampleArgs& a) {
  if (a.rows == 0) return;
  by_float(on.dtype, [&](auto zero) {
    using T = decltype(zero);
    using Kernel = SampleTokens<T>;
    launch(on.stream, "sample_tokens",
           {blocks_for(cuda_stream(on.stream), a.rows, 4), Kernel::kThreads, Kernel::kSharedBytes},
           Kernel{a, place_bits_of(a)});
  });
}

void edit_logits(On on, const EditArgs& a) {
  if (a.rows * a.n == 0) return;
  by_float(on.dtype, [&](auto zero) {
    using T = decltype(zero);
    launch(on.stream, "edit_logits", {blocks_for(cuda_stream(on.stream), a.rows, 4), 512, 0},
           EditLogits<T>{a});
  });
}

void count_tokens(tensor::Stream& stream, const TokenArgs& a, int32_t* seen, const int64_t* tokens) {
  if (a.count == 0) return;
  launch(stream, "count_tokens", {1, 128, 0}, CountTokens{a, seen, tokens});
}

void take_tokens(tensor::Stream& stream, const TokenArgs& a, const int64_t* ids, const int64_t* chosen,
                 int64_t* y) {
  if (a.count == 0) return;
  launch(stream, "take_tokens", {1, 128, 0}, TakeTokens{a, ids, chosen, y});
}

void multinomial(On on, const MultinomialArgs& a) {
  if (a.rows * a.samples == 0) return;
  const int64_t shared = (2 * kWarp + Multinomial::kThreads) * static_cast<int64_t>(sizeof(double));
  launch(on.stream, "multinomial",
         {blocks_for(cuda_stream(on.stream), a.rows), Multinomial::kThreads, shared},
         Multinomial{a, on.dtype});
}

}  // namespace trireme::cuda
