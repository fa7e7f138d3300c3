// Draws of classes and tokens. Sums over a row's tokens are of whole numbers, and a cut or a draw is found by
// sixteen-way search: no row is sorted.
#pragma once

#include <cstdint>

#include "backend/cuda/element_kernels.h"
#include "backend/cuda/flat_kernels.h"
#include "backend/cuda/gradient_norm_kernels.h"
#include "backend/cuda/sample.h"
#include "tensor/sample_math.h"

namespace trireme::cuda {

/// 64 random bits in two words.
struct DrawnWord {
  uint32_t word[4];
  TRIREME_DEVICE DrawnWord(uint64_t seed, uint64_t stream, uint64_t at) {
    const uint32_t counter[4] = {static_cast<uint32_t>(at), static_cast<uint32_t>(at >> 32),
                                 static_cast<uint32_t>(stream), static_cast<uint32_t>(stream >> 32)};
    const uint32_t key[2] = {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)};
    philox(counter, key, word);
  }
};

/// A block a row [n]. Tokens are ordered by a code: value first, then place, the first of equals first. Each
/// search reads the row once for four bits of the code: 8 to 13 reads for top_k and for top_p, 5 for the
/// draw, from the second-level cache.
template <class T>
struct SampleTokens {
  static constexpr int kThreads = 512;
  static constexpr int kWays = 16;
  static constexpr int64_t kSharedBytes =
      (kThreads / kWarp + 2) * kWays * static_cast<int64_t>(sizeof(uint64_t));
  const T* x;
  const float* settings;    // [rows, 4]
  const int64_t* counters;  // [rows, 2]
  int64_t* y;
  int64_t rows, n;
  int place_bits;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    uint64_t* scratch = lane.template shared<uint64_t>();
    for (int64_t row = lane.block(); row < rows; row += lane.blocks()) {
      const int64_t drawn = draw(lane, scratch, x + row * n, settings + row * 4, counters + row * 2);
      if (lane.thread() == 0) y[row] = drawn;
    }
  }

 private:
  /// Value and place of a token: greater codes come first.
  TRIREME_DEVICE uint64_t code_of(float v, int64_t i) const {
    return uint64_t{tensor::ordered_bits(v)} << place_bits | static_cast<uint64_t>(n - 1 - i);
  }

  template <class Lane>
  TRIREME_DEVICE int64_t draw(const Lane& lane, uint64_t* scratch, const T* from, const float* setting,
                              const int64_t* counter) const {
    uint64_t most = 0;
    for (int64_t i = lane.thread(); i < n; i += lane.threads()) {
      const uint64_t c = code_of(to_float(from[i]), i);
      most = c > most ? c : most;
    }
    most = block_reduce(lane, most, scratch, [](uint64_t a, uint64_t b) { return a > b ? a : b; });
    const int64_t best = n - 1 - static_cast<int64_t>(most & ((uint64_t{1} << place_bits) - 1));
    if (!(setting[0] > 0)) return best;
    const float largest = to_float(from[best]), inverse = 1 / setting[0];
    const auto weight = [&](float v) { return tensor::token_weight(v, largest, inverse); };
    const int bits = 32 + place_bits;
    uint64_t least = 0;  // codes from here on are kept
    const auto top_k = setting[1] >= 1 ? static_cast<int64_t>(setting[1]) : n;
    if (top_k < n) {
      least = search(lane, {scratch, from}, bits, static_cast<uint64_t>(top_k), [&](float v, int64_t i) {
        return Counted{code_of(v, i), 1};
      });
    }
    const auto kept = [&](float v, int64_t i) { return code_of(v, i) >= least; };
    if (setting[2] < 1) {
      const auto counted = [&](float v, int64_t i) {
        return Counted{code_of(v, i), kept(v, i) ? weight(v) : 0};
      };
      const uint64_t goal = tensor::nucleus(setting[2], total_of(lane, scratch, from, counted));
      const uint64_t cut = search(lane, {scratch, from}, bits, goal, counted);
      least = cut > least ? cut : least;
    }
    const uint64_t least_weight = tensor::least_weight(setting[3]);
    const auto by_place = [&](float v, int64_t i) {
      const uint64_t w = kept(v, i) ? weight(v) : 0;
      return Counted{static_cast<uint64_t>(n - 1 - i), w >= least_weight ? w : 0};
    };
    const uint64_t total = total_of(lane, scratch, from, by_place);
    const DrawnWord word(static_cast<uint64_t>(counter[0]), tensor::kTokenStream,
                         static_cast<uint64_t>(counter[1]));
    const uint64_t part = tensor::drawn_part(word.word[0], word.word[1], total);
    // The first place up to which there is more than `part`.
    const uint64_t at = search(lane, {scratch, from}, place_bits, part + 1, by_place);
    return total == 0 ? best : n - 1 - static_cast<int64_t>(at);
  }

  struct Searched {
    uint64_t* scratch;
    const T* from;
  };
  struct Counted {
    uint64_t code, amount;
  };

  template <class Lane, class F>
  TRIREME_DEVICE uint64_t total_of(const Lane& lane, uint64_t* scratch, const T* from, F f) const {
    uint64_t total = 0;
    for (int64_t i = lane.thread(); i < n; i += lane.threads()) total += f(to_float(from[i]), i).amount;
    return block_reduce(lane, total, scratch, [](uint64_t a, uint64_t b) { return a + b; });
  }

  /// The greatest code for which the amounts of codes not below it reach `goal`; 0 if none does.
  template <class Lane, class F>
  TRIREME_DEVICE uint64_t search(const Lane& lane, Searched in, int bits, uint64_t goal, F f) const {
    uint64_t prefix = 0, above = 0;
    for (int shift = (bits + 3) / 4 * 4 - 4; shift >= 0; shift -= 4) {
      uint64_t own[kWays] = {};
      for (int64_t i = lane.thread(); i < n; i += lane.threads()) {
        const Counted c = f(to_float(in.from[i]), i);
        if ((c.code >> shift) >> 4 != prefix) continue;
        const int way = static_cast<int>(c.code >> shift & 15);
        for (int w = 0; w < kWays; ++w) own[w] += w == way ? c.amount : 0;
      }
      join(lane, in.scratch, own);
      const uint64_t* sums = in.scratch + kThreads / kWarp * kWays;
      int way = kWays - 1;
      while (way > 0 && above + sums[way] < goal) above += sums[way--];
      prefix = prefix << 4 | static_cast<uint64_t>(way);
      lane.sync();  // the scratch may be written again
    }
    return prefix;
  }

  /// Sums over the block behind the warps' own.
  template <class Lane>
  TRIREME_DEVICE void join(const Lane& lane, uint64_t* scratch, const uint64_t (&own)[kWays]) const {
    for (int w = 0; w < kWays; ++w) {
      uint64_t sum = own[w];
      for (int mask = kWarp / 2; mask > 0; mask /= 2) sum += lane.shuffle_xor(sum, mask);
      if (lane.thread() % kWarp == 0) scratch[lane.thread() / kWarp * kWays + w] = sum;
    }
    lane.sync();
    if (lane.thread() < kWays) {
      uint64_t sum = 0;
      for (int warp = 0; warp < kThreads / kWarp; ++warp) sum += scratch[warp * kWays + lane.thread()];
      scratch[kThreads / kWarp * kWays + lane.thread()] = sum;
    }
    lane.sync();
  }
};

/// Draws of classes by unnormalised log probabilities, in f64: a block a row, whose threads sum runs of
/// classes; then each takes draws.
struct Multinomial {
  static constexpr int kThreads = 256;
  MultinomialArgs args;
  tensor::DType type;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    double* scratch = lane.template shared<double>();
    double* runs = scratch + 2 * kWarp;  // [kThreads]
    const int64_t n = args.classes, run = (n + kThreads - 1) / kThreads;
    for (int64_t row = lane.block(); row < args.rows; row += lane.blocks()) {
      const auto value = [&](int64_t c) { return load_element<double>(args.x_type, args.x, row * n + c); };
      double most = value(0);
      for (int64_t c = lane.thread(); c < n; c += kThreads) most = value(c) > most ? value(c) : most;
      most = block_reduce(lane, most, scratch, [](double a, double b) { return a > b ? a : b; });
      double own = 0;
      for (int64_t c = lane.thread() * run; c < (lane.thread() + 1) * run && c < n; ++c)
        own += exp(value(c) - most);
      runs[lane.thread()] = own;
      lane.sync();
      double total = 0;
      for (int t = 0; t < kThreads; ++t) total += runs[t];
      for (int64_t s = lane.thread(); s < args.samples; s += kThreads) {
        const int64_t i = row * args.samples + s;
        const DrawnWord word(args.seed, 3, static_cast<uint64_t>(i));
        const uint64_t bits = (uint64_t{word.word[0]} << 32 | word.word[1]) >> 11;
        double left = static_cast<double>(bits) * 0x1p-53 * total;
        int t = 0;
        while (t + 1 < kThreads && left >= runs[t]) left -= runs[t++];
        int64_t c = t * run;
        const int64_t last = (t + 1) * run < n ? (t + 1) * run : n;
        for (; c + 1 < last; ++c) {
          left -= exp(value(c) - most);
          if (left < 0) break;
        }
        store_element<int64_t>(type, args.y, i, c < n ? c : n - 1);
      }
      lane.sync();  // runs may be written again
    }
  }
};

}  // namespace trireme::cuda
