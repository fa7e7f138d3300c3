// Kernel of sample_tokens on CPU: each row is sorted by weight and cut.
#include <algorithm>
#include <numeric>

#include "backend/cpu/cpu_stream.h"
#include "base/rng.h"
#include "ops/elementwise/row_kernels.h"
#include "ops/random/sample_tokens.h"
#include "tensor/sample_math.h"

namespace trireme::ops {
namespace {

/// One row's memory: logits in f32, their weights, and places in the order of the cut.
struct SampleRow {
  float* x;
  uint64_t* weight;
  uint32_t* place;
  static int64_t bytes(int64_t n) { return n * static_cast<int64_t>(sizeof(uint64_t) + 2 * sizeof(float)); }
  SampleRow(void* memory, int64_t n) {
    weight = static_cast<uint64_t*>(memory);
    x = reinterpret_cast<float*>(weight + n);
    place = reinterpret_cast<uint32_t*>(x + n);
  }
};

/// The place of the drawn token.
int64_t draw(const SampleRow& row, int64_t n, const float* settings, const int64_t* counter) {
  const auto before = [&](uint32_t a, uint32_t b) {
    const uint32_t ka = tensor::ordered_bits(row.x[a]), kb = tensor::ordered_bits(row.x[b]);
    return ka != kb ? ka > kb : a < b;
  };
  std::iota(row.place, row.place + n, 0u);
  const uint32_t best = *std::min_element(row.place, row.place + n, before);
  if (!(settings[kTemperature] > 0)) return best;
  const float inverse = 1 / settings[kTemperature];
  for (int64_t i = 0; i < n; ++i) row.weight[i] = tensor::token_weight(row.x[i], row.x[best], inverse);
  int64_t kept = settings[kTopK] >= 1 ? std::min(n, static_cast<int64_t>(settings[kTopK])) : n;
  const bool cuts = settings[kTopP] < 1;
  if (cuts) {
    std::sort(row.place, row.place + n, before);
  } else if (kept < n) {
    std::nth_element(row.place, row.place + kept, row.place + n, before);
  }
  uint64_t total = 0, upto = 0;
  for (int64_t i = 0; i < kept; ++i) total += row.weight[row.place[i]];
  if (cuts) {
    const uint64_t goal = tensor::nucleus(settings[kTopP], total);
    int64_t i = 0;
    while (i < kept && upto < goal) upto += row.weight[row.place[i++]];
    kept = i;
  }
  const uint64_t least = tensor::least_weight(settings[kMinP]);
  std::sort(row.place, row.place + kept);
  total = 0;
  for (int64_t i = 0; i < kept; ++i) {
    uint64_t& w = row.weight[row.place[i]];
    w = w >= least ? w : 0;
    total += w;
  }
  const base::PhiloxBlock word = base::philox_block(static_cast<uint64_t>(counter[0]), tensor::kTokenStream,
                                                    static_cast<uint64_t>(counter[1]));
  const uint64_t part = tensor::drawn_part(word[0], word[1], total);
  upto = 0;
  for (int64_t i = 0; i < kept; ++i) {
    upto += row.weight[row.place[i]];
    if (upto > part) return row.place[i];
  }
  return best;
}

ir::BoundKernel bind(const ir::KernelInit& init) {
  const ir::NodeView& n = init.node;
  const int64_t rows = n.in_dims(0)[0], tokens = n.in_dims(0)[1];
  const int64_t each = (SampleRow::bytes(tokens) + 63) / 64 * 64;
  return tensor::visit_dtype(n.in[0].dtype, [&](auto zero) -> ir::BoundKernel {
    using T = decltype(zero);
    auto run = [=](const ir::RunArgs& args) {
      cpu::pool_of(args.stream).for_range(rows, 1, [&](int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; ++r) {
          const SampleRow row(static_cast<std::byte*>(args.workspace) + r * each, tokens);
          const T* from = static_cast<const T*>(args.in[0]) + r * tokens;
          for (int64_t i = 0; i < tokens; ++i) row.x[i] = static_cast<float>(from[i]);
          static_cast<int64_t*>(args.out[0])[r] =
              draw(row, tokens, static_cast<const float*>(args.in[1]) + r * kSampleSettings,
                   static_cast<const int64_t*>(args.in[2]) + 2 * r);
        }
      });
    };
    return {run, rows * each};
  });
}

}  // namespace

std::vector<ir::Kernel> sample_tokens_cpu_kernels() {
  ir::Kernel k{.name = "sorted"};
  k.refuse = [](const ir::NodeView& n) -> ir::Refusal {
    using tensor::DType;
    if (n.in_dims(0)[1] == 0 || n.in_dims(0)[1] > UINT32_MAX) return "no tokens, or more than 2^32";
    for (DType t : {DType::f32, DType::f16, DType::bf16}) {
      if (n.in[0].dtype == t) return std::nullopt;
    }
    return base::concat("logits are ", name_of(n.in[0].dtype));
  };
  k.prepare = bind;
  return {k};
}

}  // namespace trireme::ops
